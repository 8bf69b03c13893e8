// Files that one client alone changes as they lie: written here and there, sparse, allocated, punched, cut,
// mapped for writing, appended to slowly. Their client knows every block of them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/soak/client.h"

namespace kvcachefs::soak {
namespace {

constexpr uint64_t kFiles = 16;        // of each client in each pool
constexpr uint64_t kNearBlocks = 384;  // most of a file lies in these
constexpr uint64_t kFarBlocks = 1 << 18;
constexpr uint64_t kMostAllocatedBlocks = 1024;

struct Opened {
  OwnFile& model;
  File file;
  std::string path;
  std::string name;
};

off_t offset_of(uint64_t block) {
  return static_cast<off_t>(block * kBlock);
}

void prove_block(Client& client, const Opened& its, uint64_t block) {
  std::string bytes(kBlock, '\1');
  const long count = client.call(
      Call::kRead, its.path, [&] { return ::pread(its.file.fd(), bytes.data(), kBlock, offset_of(block)); });
  if (count < 0) return;
  bytes.resize(static_cast<size_t>(count));
  const bool is_beyond = block * kBlock >= its.model.size;
  const auto known = its.model.blocks.find(block);
  std::string expected;
  if (!is_beyond && known == its.model.blocks.end()) expected.assign(kBlock, '\0');
  if (known != its.model.blocks.end())
    expected = content_of(identity_of(its.name)->id, known->second, offset_of(block), kBlock);
  if (bytes == expected) return;
  const std::string words = wrong_words(its.name, offset_of(block), bytes);
  client.wrong(its.path + ": block " + std::to_string(block) + " has " + std::to_string(count) + " bytes" +
               (expected.empty()                  ? ", beyond the end"
                : known == its.model.blocks.end() ? ", a hole"
                                                  : ", of version " + std::to_string(known->second)) +
               (words.empty() ? ": another version, or a hole" : ": " + words));
}

void prove(Client& client, const Opened& its) {
  struct stat status {};
  if (client.call(Call::kStat, its.path, [&] { return ::fstat(its.file.fd(), &status); }) != 0) return;
  if (static_cast<uint64_t>(status.st_size) != its.model.size)
    client.wrong(its.path + ": size " + std::to_string(status.st_size) + ", not " +
                 std::to_string(its.model.size));
  for (const auto& [block, version] : its.model.blocks) prove_block(client, its, block);
  for (int i = 0; i < 8; ++i) prove_block(client, its, client.random().below(kNearBlocks));
  client.record().tally().bytes += its.model.blocks.size() * kBlock;
  ++client.record().tally().own_files;
}

// Opens an own file that is there, or else makes it anew.
Opened open_own(Client& client, int flags) {
  const std::string pool = client.any_pool();
  const uint64_t number = client.random().below(kFiles);
  OwnFile& model = client.own_files[{pool, number}];
  const std::string name = "f-" + std::to_string(client.number()) + "-" + std::to_string(number);
  const std::string path = client.own(pool) + "/" + name;
  if (model.is_known) {
    File file = client.open(flags == O_RDONLY ? Call::kOpenToRead : Call::kOpenToWrite, path, flags);
    if (file.fd() >= 0) return {model, std::move(file), path, name};
    if (errno != ENOENT) return {model, File(-1), path, name};
    ++client.record().tally().misses;
  }
  model = {};
  for (int tries = 0; tries < 2; ++tries) {
    File file = client.open(Call::kCreate, path, O_CREAT | O_TRUNC | O_RDWR, 0644);
    model.is_known = file.fd() >= 0;
    if (model.is_known || errno != ENOENT) return {model, std::move(file), path, name};
    (void)client.make(client.own(pool), 0755);
  }
  return {model, File(-1), path, name};
}

uint64_t any_block(Client& client) {
  return client.random().one_in(20) ? client.random().below(kFarBlocks) : client.random().below(kNearBlocks);
}

bool write_blocks(Client& client, Opened& its, uint64_t block, uint64_t count) {
  const uint16_t version = client.any_version();
  const std::string bytes = content_of(identity_of(its.name)->id, version, offset_of(block), count * kBlock);
  const long written = client.call(Call::kWrite, its.path, [&] {
    return ::pwrite(its.file.fd(), bytes.data(), bytes.size(), offset_of(block));
  });
  if (written != static_cast<long>(bytes.size())) return its.model.is_known = false;
  for (uint64_t i = 0; i < count; ++i) its.model.blocks[block + i] = version;
  its.model.size = std::max(its.model.size, (block + count) * kBlock);
  return true;
}

void punch(Client& client, Opened& its) {
  const uint64_t block = any_block(client), count = 1 + client.random().below(64);
  if (client.call(Call::kPunch, its.path, [&] {
        return ::fallocate(its.file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_of(block),
                           offset_of(count));
      }) == 0)
    its.model.blocks.erase(its.model.blocks.lower_bound(block), its.model.blocks.lower_bound(block + count));
}

void allocate(Client& client, Opened& its) {
  const bool keeps_size = !client.random().one_in(3);
  const uint64_t block = keeps_size ? its.model.size / kBlock : client.random().below(kNearBlocks);
  const uint64_t count = 1 + client.random().below(kMostAllocatedBlocks);
  if (client.call(Call::kAllocate, its.path,
                  [&] {
                    return ::fallocate(its.file.fd(), keeps_size ? FALLOC_FL_KEEP_SIZE : 0, offset_of(block),
                                       offset_of(count));
                  }) == 0 &&
      !keeps_size)
    its.model.size = std::max(its.model.size, (block + count) * kBlock);
}

void cut(Client& client, Opened& its) {
  const uint64_t blocks = any_block(client);
  const bool by_path = client.random().one_in(3);
  if (client.call(Call::kTruncate, its.path, [&] {
        return by_path ? ::truncate(its.path.c_str(), offset_of(blocks))
                       : ::ftruncate(its.file.fd(), offset_of(blocks));
      }) != 0)
    return;
  its.model.size = blocks * kBlock;
  its.model.blocks.erase(its.model.blocks.lower_bound(blocks), its.model.blocks.end());
}

void write_by_mapping(Client& client, Opened& its) {
  const auto first = its.model.blocks.begin();
  if (first == its.model.blocks.end()) return;
  void* at = MAP_FAILED;
  client.call(Call::kMap, its.path, [&] {
    at = ::mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_SHARED, its.file.fd(), offset_of(first->first));
    return at == MAP_FAILED ? -1 : 0;
  });
  if (at == MAP_FAILED) return;
  const uint16_t version = client.any_version();
  const std::string bytes = content_of(identity_of(its.name)->id, version, offset_of(first->first), kBlock);
  std::ranges::copy(bytes, static_cast<char*>(at));
  first->second = version;
  ::munmap(at, kBlock);
}

void change(Client& client) {
  Opened its = open_own(client, O_RDWR);
  if (its.file.fd() < 0) return;
  prove(client, its);
  const uint64_t steps = 1 + client.random().below(12);
  for (uint64_t i = 0; i < steps && its.model.is_known && client.goes_on(); ++i) {
    switch (client.random().below(9)) {
      case 0:
        punch(client, its);
        break;
      case 1:
        allocate(client, its);
        break;
      case 2:
        cut(client, its);
        break;
      case 3:
        write_by_mapping(client, its);
        break;
      default:
        (void)write_blocks(client, its, any_block(client), 1 + client.random().below(32));
    }
  }
  if (its.model.is_known && client.random().one_in(2)) prove(client, its);
  if (client.random().one_in(10)) client.call(Call::kSync, its.path, [&] { return ::fsync(its.file.fd()); });
  client.close(its.file, its.path);
}

void look(Client& client) {
  for (int i = 0; i < 4; ++i) {
    Opened its = open_own(client, O_RDONLY);
    if (its.file.fd() < 0) return;
    if (its.model.is_known) prove(client, its);
    client.close(its.file, its.path);
  }
}

// Writers that add a block now and then, and are idle in between.
void append_slowly(Client& client) {
  if (client.slow_writers.size() < 12 && client.random().one_in(2)) {
    const std::string pool = client.any_pool();
    const uint64_t number = kFiles + ++client.serial;  // nobody changes it by another way
    const std::string path =
        client.own(pool) + "/f-" + std::to_string(client.number()) + "-" + std::to_string(number);
    File file = client.open(Call::kCreate, path, O_CREAT | O_EXCL | O_RDWR, 0644);
    if (file.fd() >= 0) client.slow_writers.push_back({std::move(file), pool, number});
  }
  for (SlowWriter& writer : client.slow_writers) {
    const std::string name = "f-" + std::to_string(client.number()) + "-" + std::to_string(writer.number);
    OwnFile& model = client.own_files[{writer.pool, writer.number}];
    Opened its{model, File(writer.file.fd()), client.own(writer.pool) + "/" + name, name};
    its.model.is_known = true;
    const bool done = write_blocks(client, its, its.model.size / kBlock, 1 + client.random().below(8));
    if (done && client.random().one_in(10)) prove(client, its);
    (void)its.file.release();
    if (!done) writer.number = 0;
  }
  std::erase_if(client.slow_writers, [](const SlowWriter& writer) { return writer.number == 0; });
  std::erase_if(client.own_files, [&](const auto& own) {
    return own.first.second >= kFiles &&
           std::ranges::none_of(client.slow_writers, [&](const SlowWriter& writer) {
             return writer.number == own.first.second && writer.pool == own.first.first;
           });
  });
}

}  // namespace

const std::vector<Action>& own_file_actions() {
  static const std::vector<Action> kActions = {
      {"change", 50, change}, {"look", 25, look}, {"append slowly", 15, append_slowly}};
  return kActions;
}

}  // namespace kvcachefs::soak
