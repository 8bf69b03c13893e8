#include "tests/clients/client.h"

namespace kvcachefs::clients {

// The entry sizes keep the bytes that all threads have open at once (threads x 2 processes x size) below an
// eighth of a 128 MiB pool.
const std::vector<Engine>& engines() {
  constexpr uint64_t kKiB = 1024;
  static const std::vector<Engine> all = {
      {"vllm_direct", 256 * kKiB, make_vllm_direct},
      {"vllm_buffered", 256 * kKiB, make_vllm_buffered},
      {"sglang_v1", 1024 * kKiB, make_sglang_v1},
      {"sglang_v2", 512 * kKiB, make_sglang_v2},
      {"lmcache_local_disk", 1024 * kKiB, make_lmcache_local_disk},
      {"lmcache_local_disk_direct", 2048 * kKiB, make_lmcache_local_disk_direct},
      {"lmcache_fs", 1024 * kKiB, make_lmcache_fs},
      {"lmcache_mp_fs", 1024 * kKiB, make_lmcache_mp_fs},
      {"lmcache_fs_native", 2048 * kKiB, make_lmcache_fs_native},
      {"lmcache_gds", 1024 * kKiB, make_lmcache_gds},
      {"llama_cpp", 2048 * kKiB, make_llama_cpp},
      {"llm_d", 1024 * kKiB, make_llm_d},
      {"ucm", 1024 * kKiB, make_ucm},
      {"aibrix", 512 * kKiB, make_aibrix},
      {"kvbm", 512 * kKiB, make_kvbm},
  };
  return all;
}

}  // namespace kvcachefs::clients
