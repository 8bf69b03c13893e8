// `kvcachefs check` on a disk tier in a file that looks as a daemon would have left it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/disks.h"
#include "tests/unit/daemon/cli_fixture.h"
#include "tier/catalog/catalog.h"
#include "tier/disk/spill_orders.h"
#include "tier/disk/spill_target.h"

namespace kvcachefs::check_command_test {

constexpr uint64_t kUnit = uint64_t{1} << 20;  // not the default, so that the tool has to find it out
constexpr size_t kEntryBytes = kUnit + 5;

class CheckTest : public CliTest {
 protected:
  CheckTest() {
    Result<SpillTarget> target = open_target();
    EXPECT_TRUE(target) << target.error().message;
    uuid_ = target->uuid;
    Result<std::unique_ptr<Catalog>> catalog = Catalog::open(catalog_);
    EXPECT_TRUE(catalog) << catalog.error().message;
    const std::string uuid(reinterpret_cast<const char*>(target->uuid.data()), target->uuid.size());
    EXPECT_TRUE((*catalog)->put_setting(kSpillUuidSetting, uuid));
    std::vector<CatalogChange> changes{PutNode{node(kCatalogRoot, S_IFDIR | 01777)}};
    test::AlignedMemory memory(2 * kUnit);
    for (const uint64_t id : {2, 3}) {
      memory.fill(id);
      const uint64_t start = 1 + (id - 2) * 2;
      EXPECT_EQ(test::write_blocks(*target->device, start * kUnit, memory.all()), 0);
      changes.push_back(PutNode{node(id, S_IFREG | 0644)});
      changes.push_back(PutName{kCatalogRoot, "entry" + std::to_string(id), id});
      changes.push_back(
          PutContent{id, {kEntryBytes, checksum_of(memory.part(0, kEntryBytes)), 1, {{start, 2}}}});
    }
    EXPECT_TRUE((*catalog)->commit(changes));
  }

  static CatalogNode node(uint64_t id, uint32_t mode) {
    CatalogNode made;
    made.id = id;
    made.mode = mode;
    return made;
  }
  Result<SpillTarget> open_target() {
    return open_spill_target({.path = spill_,
                              .size_bytes = 8 * kUnit,
                              .unit_bytes = kUnit,
                              .patience = std::chrono::seconds(5),
                              .uuid = uuid_});
  }
  Outcome check(std::vector<std::string> more) {
    more.insert(more.begin(), {"check", "p"});
    return run_alone(std::move(more));
  }
  void spoil_entry_3() {
    std::fstream file(spill_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3 * kUnit + 100);
    file << "spoilt";
  }

  test::DiskDirectory directory_;
  std::optional<Uuid> uuid_;
  const std::string spill_ = directory_ / "p.spill";
  const std::string catalog_ = spill_ + ".catalog";
};

TEST_F(CheckTest, FindsAWholeTierWhole) {
  Outcome result = check({"--spill", spill_});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_TRUE(result.out.starts_with("2 entries of 2M, ")) << result.out;
  terminal_ = true;
  result = check({"--spill", spill_, "--catalog", catalog_, "--data"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_NE(result.out.find("[##############################] 100% 2M of 2M"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("2 entries of 2M, read, "), std::string::npos) << result.out;
}

TEST_F(CheckTest, FindsDamageAndMendsIt) {
  spoil_entry_3();
  EXPECT_EQ(check({"--spill", spill_}).exit_code, 0) << "the bytes were not to be read";
  Outcome result = check({"--spill", spill_, "--data"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("entry3: its bytes do not have its checksum\n"), std::string::npos) << result.out;
  EXPECT_EQ(result.error, "kvcachefs: 1 problems; --repair discards what is damaged\n");
  result = check({"--spill", spill_, "--data", "--repair"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_TRUE(result.out.ends_with("repaired 1 problems\n")) << result.out;
  result = check({"--spill", spill_, "--data"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_TRUE(result.out.starts_with("1 entries of 1M, read, ")) << result.out;
}

TEST_F(CheckTest, LeavesAPoolInUseAlone) {
  {
    Result<SpillTarget> target = open_target();
    ASSERT_TRUE(target);
    const Outcome result = check({"--spill", spill_, "--repair"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.error.find("is in use by another"), std::string::npos) << result.error;
  }
  Result<std::unique_ptr<Catalog>> catalog = Catalog::open(catalog_);
  ASSERT_TRUE(catalog);
  const Outcome result = check({"--spill", spill_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.error.find(catalog_), std::string::npos) << result.error;
}

TEST_F(CheckTest, TakesThePlaceFromTheConfiguration) {
  const std::string config = directory_ / "kvcachefs.toml";
  std::ofstream(config) << "[pools.p]\nsize = \"1G\"\nspill = \"" << spill_
                        << "\"\n[pools.q]\nsize = \"1G\"\n";
  EXPECT_EQ(check({"--config", config, "--data"}).exit_code, 0);
  Outcome result = run_alone({"check", "q", "--config", config});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.error, "kvcachefs: " + config + ": pool q has no disk tier\n");
  result = run_alone({"check", "r", "--config", config});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.error, "kvcachefs: " + config + " has no pool r\n");
  std::ofstream(config) << "colour = 1\n";
  EXPECT_EQ(check({"--config", config}).error, "kvcachefs: " + config + ":1: unknown key 'colour'\n");
}

TEST_F(CheckTest, KnowsWhatBelongsTogether) {
  Outcome result = check({"--spill", spill_, "--catalog", directory_ / "other"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.error, "kvcachefs: there is no catalog at " + (directory_ / "other") + "\n");
  EXPECT_FALSE(std::filesystem::exists(directory_ / "other"));
  result = check({"--spill", directory_ / "nothing"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.error.find("nothing: No such file"), std::string::npos) << result.error;
  const std::string blank = directory_.make_file("blank", 8 * kUnit);
  result = check({"--spill", blank, "--catalog", catalog_, "--repair"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.error.find("has no superblock; the pool's catalog expects"), std::string::npos)
      << result.error;
}

TEST_F(CheckTest, SeesThatAFileWasCut) {
  std::filesystem::resize_file(spill_, 3 * kUnit);
  Outcome result = check({"--spill", spill_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.error,
            "kvcachefs: " + spill_ + " was cut to 3M, it had 8M; --repair discards what lay there\n");
  EXPECT_EQ(std::filesystem::file_size(spill_), 3 * kUnit);
  result = check({"--spill", spill_, "--repair"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_NE(result.out.find("entry3: "), std::string::npos) << result.out;
  EXPECT_EQ(check({"--spill", spill_, "--data"}).exit_code, 0);
}

TEST_F(CheckTest, NamesMistakes) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "[--config,--spill]"},
      {{"--spill", "relative"}, "--spill: spill: 'relative' is not an absolute path"},
      {{"--spill", "/x", "--config", "/y"}, "2 were given"},
      {{"--config", "/y", "--catalog", "/z"}, "--catalog requires --spill"},
      {{"--config", "/nowhere/x.toml"}, "/nowhere/x.toml cannot be read"},
  };
  for (const auto& [arguments, reason] : cases) {
    const Outcome result = check(arguments);
    EXPECT_EQ(result.exit_code, 2) << reason;
    EXPECT_NE(result.error.find(reason), std::string::npos) << result.error << reason;
  }
}

}  // namespace kvcachefs::check_command_test
