// The messages to a service manager, as one gets them.
#include "daemon/service_manager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/disks.h"
#include "tests/support/files.h"

namespace kvcachefs::service_manager_test {

class ServiceManagerTest : public ::testing::Test {
 protected:
  ServiceManagerTest() {
    const std::string path = place_ / "notify";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~ServiceManagerTest() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  }
  struct Message {
    std::string text;
    UniqueFd fd;
  };
  // The next message; an empty one if none has come.
  Message heard() const {
    std::array<char, 4096> text{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int)) + 256> further{};
    iovec piece{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = further.data();
    message.msg_controllen = further.size();
    const ssize_t size = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0) return {};
    Message got{std::string(text.data(), static_cast<size_t>(size)), {}};
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
      if (each->cmsg_type != SCM_RIGHTS) continue;
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(each), sizeof fd);
      got.fd = UniqueFd(fd);
    }
    return got;
  }

  test::DiskDirectory place_;
  const UniqueFd socket_{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
};

TEST_F(ServiceManagerTest, HearsOfTheDaemonsState) {
  ServiceManager manager;
  EXPECT_TRUE(manager.is_there());
  EXPECT_EQ(heard().text, "");
  manager.serving("/mnt/kv");
  EXPECT_EQ(heard().text, "READY=1\nSTATUS=serves /mnt/kv");
  manager.ending();
  EXPECT_EQ(heard().text, "STOPPING=1");
  manager.alive();
  EXPECT_EQ(heard().text, "") << "it does not ask for signs of life";
}

TEST_F(ServiceManagerTest, IsTroubledNoMoreOftenThanItAsks) {
  ::setenv("WATCHDOG_USEC", "3600000000", 1);
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  ServiceManager manager;
  manager.alive();
  manager.alive();
  EXPECT_EQ(heard().text, "WATCHDOG=1");
  EXPECT_EQ(heard().text, "");
  ::setenv("WATCHDOG_USEC", "1", 1);
  ServiceManager impatient;
  impatient.alive();
  impatient.alive();
  EXPECT_EQ(heard().text, "WATCHDOG=1");
  EXPECT_EQ(heard().text, "WATCHDOG=1");
  ::setenv("WATCHDOG_PID", "1", 1);
  ServiceManager another;
  another.alive();
  EXPECT_EQ(heard().text, "") << "another process is watched";
}

TEST_F(ServiceManagerTest, KeepsADescriptorByName) {
  ServiceManager manager;
  const UniqueFd memory(::memfd_create("memory", MFD_CLOEXEC));
  manager.keep("kvcachefs-memory", memory.get());
  const Message kept = heard();
  EXPECT_EQ(kept.text, "FDSTORE=1\nFDPOLL=0\nFDNAME=kvcachefs-memory");
  struct stat its {
  }, got{};
  ASSERT_EQ(::fstat(memory.get(), &its), 0);
  ASSERT_EQ(::fstat(kept.fd.get(), &got), 0);
  EXPECT_EQ(got.st_ino, its.st_ino);
  manager.drop("kvcachefs-memory");
  EXPECT_EQ(heard().text, "FDSTOREREMOVE=1\nFDNAME=kvcachefs-memory");
}

TEST_F(ServiceManagerTest, GivesWhatItKept) {
  EXPECT_EQ(test::in_child([] {
              const int memory = ::memfd_create("memory", 0), lock = ::memfd_create("lock", 0);
              if (::dup2(lock, 24) != 24 || ::dup2(memory, 3) != 3 || ::dup2(24, 4) != 4) return 10;
              ::setenv("LISTEN_FDS", "2", 1);
              ::setenv("LISTEN_FDNAMES", "memory:lock", 1);
              ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
              ServiceManager manager;
              if (std::getenv("LISTEN_FDS") != nullptr) return 1;  // a child would take them for its own
              auto kept = manager.take_kept();
              if (kept.size() != 2 || kept["memory"].get() != 3 || kept["lock"].get() != 4) return 2;
              if (::fcntl(3, F_GETFD) != FD_CLOEXEC || ::fcntl(4, F_GETFD) != FD_CLOEXEC) return 3;
              if (!manager.take_kept().empty()) return 4;
              return ServiceManager().take_kept().empty() ? 0 : 5;
            }),
            0);
}

TEST(NoServiceManager, IsToldNothing) {
  ::unsetenv("NOTIFY_SOCKET");
  ServiceManager manager;
  EXPECT_FALSE(manager.is_there());
  manager.serving("/mnt/kv");
  manager.keep("name", STDIN_FILENO);
  manager.alive();
  manager.drop("name");
  EXPECT_TRUE(manager.take_kept().empty());
}

}  // namespace kvcachefs::service_manager_test
