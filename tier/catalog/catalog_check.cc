#include "tier/catalog/catalog_check.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "alloc/extent_allocator.h"
#include "base/sys_disk.h"
#include "tier/catalog/content_layout.h"
#include "tier/catalog/content_verifier.h"

namespace kvcachefs {
namespace {

constexpr Extent kSuperblock{0, 1};
constexpr unsigned kReadDepth = 32;
constexpr uint64_t kReadPieceBytes = 1 << 20;
constexpr std::chrono::milliseconds kReadWait{1000};

class Check {
 public:
  Check(Catalog& catalog, const CheckOptions& options)
      : catalog_(catalog), options_(options), space_(options.size_units) {}
  Result<CheckReport> run();

 private:
  struct File {
    uint64_t id = 0;
    uint64_t size_bytes = 0;
    Checksum checksum;
    size_t first_extent = 0;  // index in extents_
    size_t extents = 0;
  };
  class Survey;
  class Naming;

  std::span<const Extent> extents_of(const File& file) const {
    return std::span(extents_).subspan(file.first_extent, file.extents);
  }
  uint64_t data_bytes_of(const File& file) const {
    return kvcachefs::data_bytes_of(extents_of(file), file.size_bytes, options_.unit_bytes);
  }
  bool is_bad(const File& file) const { return bad_.contains(file.id); }
  void add(CheckProblem problem) {
    ++report_.problem_count;
    if (report_.problems.size() < CheckReport::kListed) report_.problems.push_back(std::move(problem));
  }
  std::string misplaced(const File& file) const;  // empty: the content is where it should be
  Result<void> read_contents();
  void judge(const ContentVerifier::Verdict& verdict);
  void claim_space();
  Result<void> name_bad_ones();
  Result<void> discard();

  Catalog& catalog_;
  const CheckOptions& options_;
  CheckReport report_;
  std::vector<File> files_;  // by id
  std::vector<Extent> extents_;
  std::map<uint64_t, std::string> bad_;         // by id: what is wrong with the file
  std::map<uint64_t, std::string> unreadable_;  // by id: the disk gave an error, perhaps only now
  std::vector<CatalogChange> drops_;
  ExtentAllocator space_;
};

class Check::Survey final : public CatalogVisitor {
 public:
  explicit Survey(Check& check) : check_(check) {}
  void node(const CatalogNode& node, std::span<const CatalogName>, const CatalogContent* content) override {
    ++check_.report_.nodes;
    if (content == nullptr) return;
    check_.files_.push_back(
        {node.id, content->size_bytes, content->checksum, check_.extents_.size(), content->extents.size()});
    check_.extents_.insert(check_.extents_.end(), content->extents.begin(), content->extents.end());
  }
  void lost(CatalogLoss loss, uint64_t id, std::string_view name) override {
    check_.add({id, std::string(name), std::string(to_string(loss))});
  }

 private:
  Check& check_;
};

// Naming visits the tree again for the names of the bad files, which are few even among a million.
class Check::Naming final : public CatalogVisitor {
 public:
  explicit Naming(Check& check) : check_(check) {}
  void node(const CatalogNode& node, std::span<const CatalogName> names, const CatalogContent*) override {
    if (S_ISDIR(node.mode) && !names.empty())
      directories_[node.id] = {names.front().parent, std::string(names.front().name)};
    const bool listed = check_.report_.problems.size() < CheckReport::kListed;
    if (const auto kept = check_.unreadable_.find(node.id); kept != check_.unreadable_.end())
      check_.add({node.id, listed ? path(names.front()) : std::string(), kept->second});
    const auto bad = check_.bad_.find(node.id);
    if (bad == check_.bad_.end()) return;
    check_.add({node.id, listed ? path(names.front()) : std::string(), bad->second});
    for (const CatalogName& name : names)
      check_.drops_.emplace_back(DropName{name.parent, std::string(name.name)});
  }
  void lost(CatalogLoss, uint64_t, std::string_view) override {}

 private:
  // Because a directory may lie as deep as there are inodes, a path of more than PATH_MAX bytes is shown by
  // its end.
  std::string path(const CatalogName& name) const {
    std::vector<std::string_view> upwards{name.name};
    size_t bytes = name.name.size();
    for (auto up = directories_.find(name.parent); up != directories_.end();
         up = directories_.find(up->second.first)) {
      bytes += up->second.second.size() + 1;
      upwards.push_back(bytes < PATH_MAX ? std::string_view(up->second.second) : "...");
      if (bytes >= PATH_MAX) break;
    }
    std::ranges::reverse(upwards);
    return fmt::format("{}", fmt::join(upwards, "/"));
  }

  Check& check_;
  std::unordered_map<uint64_t, std::pair<uint64_t, std::string>> directories_;
};

Result<CheckReport> Check::run() {
  if (options_.size_units == 0 || !space_.claim(kSuperblock)) return fail(EINVAL, "a disk without units");
  Survey survey(*this);
  Result<void> done =
      catalog_.load(survey, options_.repair ? Catalog::Losses::kDrop : Catalog::Losses::kKeep);
  if (!done) return pass(done);
  for (const File& file : files_)
    if (std::string what = misplaced(file); !what.empty()) bad_.emplace(file.id, std::move(what));
  if (options_.device != nullptr) done = read_contents();
  if (!done) return pass(done);
  claim_space();
  std::erase_if(unreadable_, [&](const auto& file) { return bad_.contains(file.first); });
  done = name_bad_ones();
  if (done && options_.repair) done = discard();
  if (!done) return pass(done);
  for (const File& file : files_) {
    if (is_bad(file)) continue;
    ++report_.files;
    report_.content_bytes += data_bytes_of(file);
  }
  report_.nodes -= bad_.size();
  report_.free_units = space_.free_units();
  report_.used_units = options_.size_units - report_.free_units;
  report_.unreadable = unreadable_.size();
  report_.repaired = options_.repair && report_.problem_count > report_.unreadable;
  return std::move(report_);
}

std::string Check::misplaced(const File& file) const {
  uint64_t units = 0;
  for (const Extent& extent : extents_of(file)) {
    if (!is_hole(extent) && extent.start + extent.count > options_.size_units)
      return fmt::format("its extent {}+{} is beyond the disk's {} units", extent.start, extent.count,
                         options_.size_units);
    units = extent.count > UINT64_MAX - units ? UINT64_MAX : units + extent.count;
  }
  const uint64_t wanted =
      file.size_bytes / options_.unit_bytes + (file.size_bytes % options_.unit_bytes == 0 ? 0 : 1);
  if (units == wanted && file.size_bytes <= INT64_MAX) return {};
  return fmt::format("its {} bytes need {} units, it has {}", file.size_bytes, wanted, units);
}

// read_contents() reads in the order in which the contents lie on the disk.
Result<void> Check::read_contents() {
  std::vector<ContentVerifier::Content> contents;
  uint64_t all_bytes = 0;
  for (const File& file : files_) {
    if (is_bad(file)) continue;
    contents.push_back({file.id, file.size_bytes, file.checksum, extents_of(file)});
    all_bytes += data_bytes_of(file);
  }
  std::ranges::sort(contents, {}, [](const ContentVerifier::Content& content) {
    return first_place_of(content.extents, 1);
  });
  auto channel = options_.device->channel(kReadDepth);
  if (!channel) return pass(channel);
  auto verifier = ContentVerifier::make(**channel, {.unit_bytes = options_.unit_bytes,
                                                    .alignment_bytes = options_.device->alignment_bytes(),
                                                    .piece_bytes = kReadPieceBytes,
                                                    .depth = kReadDepth});
  if (!verifier) return pass(verifier);
  ContentVerifier& reader = **verifier;
  uint64_t done_bytes = 0;
  for (auto next = contents.begin(); next != contents.end() || !reader.idle();) {
    while (reader.has_room() && (reader.sending() || next != contents.end())) {
      if (!reader.sending()) reader.begin(*next++);
      (void)reader.send_piece();
    }
    reader.collect(kReadWait);
    while (auto verdict = reader.next_verdict()) {
      judge(*verdict);
      done_bytes += verdict->read_bytes;
      if (options_.progress) options_.progress(done_bytes, all_bytes);
    }
  }
  return {};
}

void Check::judge(const ContentVerifier::Verdict& verdict) {
  const auto [kind, error] = verdict.finding;
  if (kind == Finding::Kind::kWrongBytes)
    bad_.emplace(verdict.content.id, "its bytes do not have its checksum");
  else if (kind == Finding::Kind::kTooFewExtents)
    bad_.emplace(verdict.content.id, "its extents are too few for its bytes");
  else if (kind == Finding::Kind::kUnreadable)
    unreadable_.emplace(verdict.content.id, fmt::format("it cannot be read now: {}", sys::error_text(error)));
}

// The first file that names a unit keeps it, as at a start of the pool.
void Check::claim_space() {
  for (const File& file : files_) {
    if (is_bad(file)) continue;
    const std::span<const Extent> extents = extents_of(file);
    size_t claimed = 0;
    while (claimed < extents.size() && (is_hole(extents[claimed]) || space_.claim(extents[claimed])))
      ++claimed;
    if (claimed == extents.size()) continue;
    for (const Extent& extent : extents.first(claimed))
      if (!is_hole(extent)) space_.free({&extent, 1});
    bad_.emplace(file.id, fmt::format("its extent {}+{} is another's too", extents[claimed].start,
                                      extents[claimed].count));
  }
}

Result<void> Check::name_bad_ones() {
  if (bad_.empty() && unreadable_.empty()) return {};
  Naming naming(*this);
  return catalog_.load(naming, Catalog::Losses::kKeep);
}

// The commit's answer is ignored: some of the extents are another file's too, or beyond the disk.
Result<void> Check::discard() {
  if (drops_.empty()) return {};
  Result<std::vector<Extent>> dropped = catalog_.commit(drops_);
  if (!dropped) return pass(dropped);
  return {};
}

}  // namespace

Result<CheckReport> check_catalog(Catalog& catalog, const CheckOptions& options) {
  return Check(catalog, options).run();
}

}  // namespace kvcachefs
