#include "cli/guard_folder.h"

#include <nlohmann/json.hpp>

#include "lib/base/io.h"
#include "lib/base/json_writer.h"
#include "lib/base/replace_file.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

constexpr const char* kName = "guard.json";
constexpr const char* kSchema = "ckpt.guard-folder/1";

}  // namespace

Result<GuardState> read_guard_state(const fs::path& folder) {
  GuardState out;
  const fs::path path = folder / kName;
  auto text = io::read_file(path, uint64_t{16} << 20);
  if (!text && text.error().code == Code::kNotFound) return out;
  if (!text) return std::move(text).error();
  const auto doc = nlohmann::json::parse(*text, nullptr, false);
  Error wrong(Code::kCorrupt, path.string(), "is not what ckpt guard wrote");
  if (!doc.is_object() || doc.value("schema", "") != kSchema) return wrong;
  try {
    out.command = doc.at("command").get<std::vector<std::string>>();
    out.over = doc.at("over").get<uint64_t>();
    out.boot = doc.at("boot").get<std::string>();
    out.pid = doc.at("pid").get<int>();
    out.start_time = doc.at("start_time").get<uint64_t>();
    out.not_before = doc.at("not_before").get<uint64_t>();
  } catch (const nlohmann::json::exception&) {
    return wrong;
  }
  return out;
}

Result<void> write_guard_state(const fs::path& folder, const GuardState& state) {
  JsonWriter json;
  json.open('{');
  json.members("schema", kSchema, "command", state.command, "over", state.over, "boot", state.boot, "pid", state.pid,
               "start_time", state.start_time, "not_before", state.not_before);
  json.close();
  return io::replace_file(folder / kName, std::move(json).finish());
}

std::string boot_id() {
  const std::string text = io::read_file("/proc/sys/kernel/random/boot_id", 64).value_or("");
  return text.substr(0, text.find('\n'));
}

}  // namespace ckpt::cli
