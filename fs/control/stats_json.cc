// This is the only user of the JSON library.
#include "fs/control/stats.h"

#include <nlohmann/json.hpp>

namespace kvcachefs {
namespace {

using Json = nlohmann::ordered_json;

Json object_of(const Stats& stats) {
  Json object = Json::object();
  for (const Stat& stat : stats) {
    std::visit([&](const auto& value) { object[std::string(stat.name)] = value; }, stat.value);
  }
  return object;
}

std::string line_of(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string render_json(const Stats& stats) {
  return line_of(object_of(stats));
}

std::string render_json(const Stats& server, std::span<const PoolReport> pools) {
  Json object = object_of(server);
  Json& each = object["pools"] = Json::object();
  for (const PoolReport& pool : pools) each[pool.name] = object_of(pool.stats);
  return line_of(object);
}

}  // namespace kvcachefs
