#include "tests/soak/stores.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace kvcachefs::soak {
namespace {

constexpr std::array<size_t, 4> kPieces = {16 << 10, 256 << 10, 1 << 20, 16 << 20};

// A directory may have left, being empty, or may never have been made.
File create_in(Client& client, const std::string& directory, const std::string& temporary, bool nameless) {
  for (int tries = 0;; ++tries) {
    File file = nameless ? client.open(Call::kOpenNameless, directory, O_TMPFILE | O_WRONLY)
                         : client.open(Call::kCreate, temporary, O_CREAT | O_EXCL | O_WRONLY);
    if (file.fd() >= 0 || errno != ENOENT || tries == 2) return file;
    (void)client.make(directory);
  }
}

bool name_it(Client& client, const File& file, const std::string& temporary) {
  const std::string its = "/proc/self/fd/" + std::to_string(file.fd());
  return client.call(Call::kLinkNameless, temporary, [&] {
    return ::linkat(AT_FDCWD, its.c_str(), AT_FDCWD, temporary.c_str(), AT_SYMLINK_FOLLOW);
  }) == 0;
}

}  // namespace

bool write_all(Client& client, const File& file, std::string_view path, std::string_view content,
               size_t piece) {
  while (!content.empty()) {
    const size_t count = std::min(piece, content.size());
    const long written =
        client.call(Call::kWrite, path, [&] { return ::write(file.fd(), content.data(), count); });
    if (written != static_cast<long>(count)) return false;
    content.remove_prefix(count);
  }
  return true;
}

bool store(Client& client, const std::string& directory, const std::string& name, How how) {
  const std::string temporary =
      directory + "/tmp-" + std::to_string(client.number()) + "-" + std::to_string(++client.serial);
  const std::string path = directory + "/" + name;
  File file = create_in(client, directory, temporary, how == How::kNameless);
  if (file.fd() < 0) return false;
  const uint16_t version = client.any_version();
  const std::string content = content_of(identity_of(name)->id, version, 0, whole_size(name, version));
  const size_t piece = kPieces[client.random().below(kPieces.size())];
  bool done = write_all(client, file, temporary, content, piece);
  if (done && how == How::kDurable) client.call(Call::kSync, temporary, [&] { return ::fsync(file.fd()); });
  if (done && how == How::kNameless) done = name_it(client, file, temporary);
  client.close(file, temporary);
  if (done &&
      client.call(Call::kRename, path, [&] { return ::rename(temporary.c_str(), path.c_str()); }) == 0)
    return true;
  client.call(Call::kUnlink, temporary, [&] { return ::unlink(temporary.c_str()); });
  return false;
}

void read_open(Client& client, const File& file, const std::string& path, const std::string& name) {
  std::string content;
  std::string piece(kPieces[client.random().below(kPieces.size())], '\0');
  for (;;) {
    const auto at = static_cast<off_t>(content.size());
    const long count =
        client.call(Call::kRead, path, [&] { return ::pread(file.fd(), piece.data(), piece.size(), at); });
    if (count < 0) return;
    if (count == 0) break;
    content.append(piece, 0, static_cast<size_t>(count));
  }
  if (const std::string wrong = wrong_whole(name, content); !wrong.empty())
    return client.wrong(path + ": " + wrong);
  client.record().tally().bytes += content.size();
  ++client.record().tally().whole;
}

void read_whole(Client& client, const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  File file = client.open(Call::kOpenToRead, path, O_RDONLY);
  if (file.fd() < 0) {
    ++client.record().tally().misses;
    return;
  }
  read_open(client, file, path, name);
  client.close(file, path);
}

}  // namespace kvcachefs::soak
