#include "daemon/cli/daemon_process.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/key_value.h"
#include "base/sys.h"
#include "base/sys_beneath.h"
#include "base/sys_disk.h"
#include "base/sys_process.h"
#include "daemon/config.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kMostReadBytes = 256 << 10;  // 200 lines of more than a kilobyte

std::string proc_file(pid_t process, std::string_view what) {
  return fmt::format("/proc/{}/{}", process, what);
}

Result<std::string> end_of(const std::string& file) {
  const auto opened = sys::open_at(AT_FDCWD, file.c_str(), O_RDONLY | O_NONBLOCK);
  if (!opened)
    return fail(opened.error().code, fmt::format("{}: {}", file, sys::error_text(opened.error().code)));
  const auto status = sys::stat_of(opened->get());
  if (!status || !S_ISREG(status->st_mode)) return fail(EINVAL, file + ": is no file");
  const auto size_bytes = static_cast<uint64_t>(status->st_size);
  const uint64_t length = std::min(size_bytes, kMostReadBytes);
  std::string text(length, '\0');
  const auto count = sys::read_at(opened->get(), text, size_bytes - length);
  if (!count)
    return fail(count.error().code, fmt::format("{}: {}", file, sys::error_text(count.error().code)));
  text.resize(*count);
  if (length < size_bytes) text.erase(0, text.find('\n') + 1);
  return text;
}

}  // namespace

bool is_daemon(pid_t process) {
  const std::string status = sys::read_text(proc_file(process, "status").c_str()).value_or("");
  // Any process may take the name.
  return line_value(status, "Name") == "\tkvcachefsd" && line_value(status, "Uid").starts_with("\t0\t0\t");
}

Result<std::string> command_line_of(pid_t process) {
  auto words = sys::read_text(proc_file(process, "cmdline").c_str());
  if (!words) return words;
  std::ranges::replace(*words, '\0', ' ');
  return words;
}

std::string config_named_in(std::string_view words) {
  constexpr std::string_view kOption = "--config";
  while (!words.empty()) {
    std::string_view word = take_part(words, '\0');
    if (!word.starts_with(kOption)) continue;
    word.remove_prefix(kOption.size());
    if (word.empty()) return std::string(take_part(words, '\0'));
    if (word.starts_with('=')) return std::string(word.substr(1));
  }
  return "";
}

namespace {

// Reads the file as a process with that root does. The creator of the file is not trusted: it may be no
// regular file.
Result<std::string> text_in(const UniqueFd& root, const std::string& file) {
  auto opened = sys::open_in_root(root.get(), file.c_str(), O_PATH);
  const auto status = opened ? sys::stat_of(opened->get()) : Result<struct stat>(pass(opened));
  if (!status) return fail(status.error().code, file + ": " + sys::error_text(status.error().code));
  if (!S_ISREG(status->st_mode)) return fail(EINVAL, file + ": is no file");
  return sys::read_text(fmt::format("/proc/self/fd/{}", opened->get()).c_str());
}

Result<std::vector<std::string>> further_files_in(const UniqueFd& root, const std::string& file) {
  const std::string directory = further_config_directory(file);
  const auto opened = sys::open_in_root(root.get(), directory.c_str(), O_PATH | O_DIRECTORY);
  if (!opened) return std::vector<std::string>();
  auto found = further_config_files(fmt::format("/proc/self/fd/{}", opened->get()));
  if (!found) return pass(found);
  std::vector<std::string> files;
  for (const std::filesystem::path& each : *found) files.push_back(directory / each.filename());
  return files;
}

}  // namespace

Result<std::string> configuration_files_in(const std::string& root, const std::string& named) {
  const auto directory = sys::open_at(AT_FDCWD, root.c_str(), O_PATH);
  if (!directory) return fail(directory.error().code, root + ": " + sys::error_text(directory.error().code));
  auto files = further_files_in(*directory, named);
  if (!files) return pass(files);
  files->insert(files->begin(), named);
  std::string out;
  for (const std::string& file : *files) {
    const auto text = text_in(*directory, file);
    if (!text) return text;
    out += fmt::format("# {}\n{}", file, *text);
    if (!out.ends_with('\n')) out += '\n';
  }
  return out;
}

Result<std::string> configuration_files_of(pid_t process) {
  const auto words = sys::read_text(proc_file(process, "cmdline").c_str());
  if (!words) return words;
  const std::string named = config_named_in(*words);
  if (named.empty()) return std::string();
  const std::string root = proc_file(process, "root"), here = proc_file(process, "cwd");
  if (named.starts_with('/')) return configuration_files_in(root, named);
  const auto its_root = sys::identity_of(root), its_cwd = sys::identity_of(here);
  if (its_root && its_cwd && *its_root == *its_cwd)
    return fail(ENOENT, named + ": the daemon has left the directory that it was started in");
  return configuration_files_in(here, named);
}

DaemonLog log_of(pid_t process, const std::string& file) {
  const std::string link = proc_file(process, "fd/2");
  const auto target = sys::read_link(AT_FDCWD, link.c_str());
  std::error_code error;
  if (target && std::filesystem::is_regular_file(link, error)) return {*target, end_of(link)};
  if (!target || target->starts_with("socket:")) {
    const auto cgroups = sys::read_text(proc_file(process, "cgroup").c_str());
    if (const std::string service = service_in(cgroups.value_or("")); !service.empty())
      return journal_of(service);
  }
  if (!target) return log_in(file);
  return {fmt::format("standard error of process {}", process), fail(ENOENT, "it leads to " + *target)};
}

DaemonLog log_in(const std::string& file) {
  return {file, end_of(file)};
}

std::string service_in(std::string_view cgroups) {
  while (!cgroups.empty()) {
    const std::string_view line = take_part(cgroups, '\n');
    if (!line.starts_with("0::") && !line.contains(":name=systemd:")) continue;
    const std::string_view name = line.substr(line.rfind('/') + 1);
    // systemd's names have no quote; what else has one is for no shell.
    if (name.ends_with(".service") && !name.contains('\'')) return std::string(name);
  }
  return "";
}

DaemonLog journal_of(const std::string& service) {
  const auto read = [&]() -> Result<std::string> {
    const std::string command =
        fmt::format("journalctl --unit '{}' --lines 200 --no-pager --output short-iso 2>/dev/null", service);
    FILE* const answer = ::popen(command.c_str(), "r");
    if (answer == nullptr) return fail(ENOENT, "journalctl cannot be run");
    std::string text;
    char piece[4096];
    for (size_t got; (got = std::fread(piece, 1, sizeof piece, answer)) > 0;) text.append(piece, got);
    if (::pclose(answer) != 0) return fail(ENOENT, "journalctl has none");
    return text;
  };
  return {"the journal of " + service, read()};
}

}  // namespace kvcachefs
