// Names: rename with its flags, hard links, symbolic links, and special files.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/support/transcript.h"

namespace kvcachefs::test {
namespace {

class Names {
 public:
  Names(Transcript& transcript, const std::string& directory)
      : transcript_(transcript), directory_(directory) {}

  std::string operator()(const std::string& name) const { return directory_ + "/" + name; }
  void file(const std::string& name) const { write_file((*this)(name), "content of " + name); }
  void rename(const std::string& from, const std::string& to, unsigned flags = 0) const {
    const long result = ::renameat2(AT_FDCWD, (*this)(from).c_str(), AT_FDCWD, (*this)(to).c_str(), flags);
    transcript_.call("rename " + from + " to " + to + " flags " + std::to_string(flags), result);
  }
  void link(const std::string& from, const std::string& to) const {
    transcript_.call("link " + from + " to " + to, ::link((*this)(from).c_str(), (*this)(to).c_str()));
  }
  void symlink(const std::string& target, const std::string& name) const {
    transcript_.call("symlink " + name, ::symlink(target.c_str(), (*this)(name).c_str()));
  }
  void unlink(const std::string& name) const {
    transcript_.call("unlink " + name, ::unlink((*this)(name).c_str()));
  }
  void show(const std::string& name) const {
    transcript_.status(name, (*this)(name));
    transcript_.content(name, (*this)(name));
  }

 private:
  Transcript& transcript_;
  const std::string& directory_;
};

PARITY_TEST(RenameFiles) {
  const Names at(transcript, directory);
  at.file("a");
  at.file("b");
  at.rename("a", "c");
  at.show("a");
  at.show("c");
  at.rename("c", "b");
  at.show("b");
  at.rename("missing", "b");
  at.rename("b", "missing/b");
  at.rename("b", "b");
  at.rename("b", "b/c");
  make_directory(at("d"));
  at.rename("b", "d");
  at.rename("b", "d/b");
  at.show("d/b");
  transcript.listing("listing", directory);
}

PARITY_TEST(RenameDirectories) {
  const Names at(transcript, directory);
  make_directory(at("a"));
  make_directory(at("a/inner"));
  at.file("a/inner/file");
  make_directory(at("empty"));
  make_directory(at("full"));
  at.file("full/file");
  at.file("file");
  at.rename("a", "a/inner/below-itself");
  at.rename("a", "full");
  at.rename("a", "file");
  at.rename("file", "empty");
  at.rename("a", "empty");
  at.show("empty/inner/file");
  at.rename("empty/inner", "moved");
  at.show("moved/file");
  transcript.status("links of the old parent", at("empty"));
  transcript.status("links of the new parent", directory);
  at.rename("moved/.", "x");
  at.rename("moved", "..");
  transcript.listing("listing", directory);
}

PARITY_TEST(RenameFlags) {
  const Names at(transcript, directory);
  at.file("a");
  at.file("b");
  make_directory(at("d"));
  at.file("d/inner");
  at.rename("a", "b", RENAME_NOREPLACE);
  at.rename("a", "c", RENAME_NOREPLACE);
  at.show("c");
  at.rename("b", "c", RENAME_EXCHANGE);
  at.show("b");
  at.show("c");
  at.rename("b", "d", RENAME_EXCHANGE);
  at.show("d");
  at.show("b/inner");
  transcript.status("links of the parent", directory);
  at.rename("b/inner", "c", RENAME_EXCHANGE);
  at.show("b/inner");
  at.show("c");
  at.rename("c", "missing", RENAME_EXCHANGE);
  at.rename("c", "d", RENAME_EXCHANGE | RENAME_NOREPLACE);
  at.rename("c", "d", 1U << 7);
  transcript.listing("listing", directory);
}

// The kernel's FUSE refuses WHITEOUT unless the file system announces it; both answers are right.
PARITY_TEST(RenameWhiteout) {
  const Names at(transcript, directory);
  at.file("a");
  const int error = error_of(
      ::renameat2(AT_FDCWD, at("a").c_str(), AT_FDCWD, at("b").c_str(), RENAME_WHITEOUT | RENAME_NOREPLACE));
  EXPECT_TRUE(error == 0 || error == EINVAL) << error_name(error);
  transcript.note("one of the two has the content", exists(at("b")) || exists(at("a")) ? "yes" : "no");
}

PARITY_TEST(RenameAcrossHardLinks) {
  const Names at(transcript, directory);
  at.file("a");
  at.link("a", "b");
  // POSIX: a rename between two links of one file does nothing, and both stay.
  at.rename("a", "b");
  at.show("a");
  at.show("b");
}

PARITY_TEST(HardLinks) {
  const Names at(transcript, directory);
  at.file("a");
  make_directory(at("d"));
  at.link("a", "b");
  at.link("a", "d/c");
  at.show("a");
  at.show("d/c");
  at.link("a", "b");
  at.link("missing", "x");
  at.link("d", "x");
  at.link("a", "missing/x");
  write_file(at("b"), "changed through b");
  at.show("a");
  struct stat one {};
  struct stat other {};
  transcript.call("stat", ::stat(at("a").c_str(), &one));
  transcript.call("stat", ::stat(at("d/c").c_str(), &other));
  EXPECT_EQ(one.st_ino, other.st_ino);
  at.unlink("a");
  at.show("b");
  at.unlink("d/c");
  at.show("b");
  at.unlink("b");
  transcript.listing("listing", directory);
}

PARITY_TEST(LinkToAnUnlinkedFile) {
  const Names at(transcript, directory);
  at.file("a");
  const File file(at("a"), O_RDONLY);
  at.unlink("a");
  transcript.call("linkat", ::linkat(AT_FDCWD, ("/proc/self/fd/" + std::to_string(file.fd())).c_str(),
                                     AT_FDCWD, at("b").c_str(), AT_SYMLINK_FOLLOW));
  transcript.listing("listing", directory);
}

PARITY_TEST(SymbolicLinks) {
  const Names at(transcript, directory);
  at.file("file");
  at.symlink("file", "good");
  at.symlink("nowhere", "dangling");
  at.symlink("loop", "loop");
  at.symlink(".", "here");
  at.symlink("file", "good");
  at.symlink(std::string(4000, 'x'), "long");
  at.symlink("", "empty");
  for (const std::string name : {"good", "dangling", "loop", "here/file", "long"}) at.show(name);
  char target[8192];
  for (const std::string name : {"good", "long", "file", "here"}) {
    transcript.call("readlink " + name, ::readlink(at(name).c_str(), target, sizeof(target)));
  }
  transcript.call("readlink cut short", ::readlink(at("good").c_str(), target, 2));
  transcript.call("O_NOFOLLOW", ::open(at("good").c_str(), O_RDONLY | O_NOFOLLOW));
  transcript.note("O_EXCL does not follow",
                  error_of(::open(at("dangling").c_str(), O_RDWR | O_CREAT | O_EXCL, 0644)));
  transcript.note("lchown", error_of(::lchown(at("dangling").c_str(), 12, 34)));
  transcript.status("owner", at("dangling"));
  at.link("good", "link-to-link");
  transcript.status("link-to-link", at("link-to-link"));
  write_file(at("dangling"), "made through the link");
  at.show("nowhere");
  at.rename("good", "renamed");
  at.show("renamed");
  transcript.call("rmdir of a link to a directory", ::rmdir(at("here").c_str()));
  at.unlink("here");
  transcript.listing("listing", directory);
}

PARITY_TEST(Pipes) {
  const Names at(transcript, directory);
  transcript.call("mkfifo", ::mkfifo(at("pipe").c_str(), 0640));
  transcript.call("again", ::mkfifo(at("pipe").c_str(), 0640));
  transcript.status("pipe", at("pipe"));
  const File both(at("pipe"), O_RDWR);
  const File reader(at("pipe"), O_RDONLY | O_NONBLOCK);
  const File writer(at("pipe"), O_WRONLY);
  transcript.call("write", ::write(writer.fd(), "through", 7));
  char bytes[10] = {};
  transcript.call("read", ::read(reader.fd(), bytes, sizeof(bytes)));
  transcript.note("bytes", bytes);
  at.rename("pipe", "moved");
  transcript.status("moved", at("moved"));
  at.unlink("moved");
}

PARITY_TEST(Sockets) {
  const Names at(transcript, directory);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", at("s").c_str());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  const File server(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  transcript.call("bind", ::bind(server.fd(), generic, sizeof(address)));
  transcript.call("listen", ::listen(server.fd(), 1));
  transcript.status("socket", at("s"));
  const File client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  transcript.call("connect", ::connect(client.fd(), generic, sizeof(address)));
  transcript.note("open", error_of(::open(at("s").c_str(), O_RDWR)));
  at.unlink("s");
}

PARITY_TEST(DeviceNodes) {
  const Names at(transcript, directory);
  transcript.call("character device", ::mknod(at("null").c_str(), S_IFCHR | 0666, makedev(1, 3)));
  transcript.call("block device", ::mknod(at("disk").c_str(), S_IFBLK | 0600, makedev(7, 0)));
  transcript.call("plain file", ::mknod(at("file").c_str(), S_IFREG | 0640, 0));
  transcript.call("existing", ::mknod(at("file").c_str(), S_IFREG | 0640, 0));
  for (const std::string name : {"null", "disk", "file"}) transcript.status(name, at(name));
  // The devices are kept but cannot be used, because both mounts are nodev.
  transcript.note("open", error_of(::open(at("null").c_str(), O_RDONLY)));
  transcript.note("as a user", as_user(1234, 1234, [&] {
                    return error_of(::mknod(at("other").c_str(), S_IFCHR | 0666, makedev(1, 3)));
                  }));
  write_file(at("file"), "a file made by mknod is a file");
  at.show("file");
}

}  // namespace
}  // namespace kvcachefs::test
