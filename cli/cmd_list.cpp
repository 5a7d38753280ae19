// list: the process images below a folder, from their manifests alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/store/find_images.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

struct Entry {
  fs::path path;
  Result<store::Manifest> manifest;
  Result<void> chain;  ///< its parents, up to the first

  uint64_t bytes() const {
    uint64_t sum = 0;
    if (manifest) {
      for (const store::StoredFile& file : manifest->files) sum += file.size;
    }
    return sum;
  }
};

Json entry_json(const Entry& entry) {
  if (!entry.manifest) return {{"path", entry.path.string()}, {"ok", false}, {"error", entry.manifest.error().text()}};
  const store::Manifest& m = *entry.manifest;
  Json out = {{"path", entry.path.string()}, {"ok", entry.chain.has_value()},
          {"id", m.id},                  {"image_kind", m.kind},
          {"created", m.created},        {"pid", m.tree.root().pid},
          {"arguments", m.tree.root().arguments}, {"parent_path", m.parent_path},
          {"parent_id", m.parent_id},    {"bytes", entry.bytes()}};
  if (!entry.chain) out["error"] = entry.chain.error().text();
  return out;
}

std::vector<std::string> entry_row(const Entry& entry) {
  if (!entry.manifest) return {entry.path.string(), "damaged", "", "", "", "", entry.manifest.error().message};
  const store::Manifest& m = *entry.manifest;
  std::string command;
  for (const std::string& word : m.tree.root().arguments) command += (command.empty() ? "" : " ") + word;
  if (!entry.chain) command = entry.chain.error().text();
  return {entry.path.string(),
          entry.chain ? m.kind : "no parent",
          m.created,
          std::to_string(m.tree.root().pid),
          human_bytes(entry.bytes()),
          m.parent_path.empty() ? "-" : m.parent_path,
          command};
}

/// Whether all that an image needs is there, by the manifests alone. What was found out about a folder is kept.
class Parents {
 public:
  Result<void> check(const fs::path& image, const store::Manifest& manifest) {
    // Along the chain to the first image that is known, then back: a chain may be longer than the stack is deep.
    std::vector<std::string> asked;
    fs::path dir = image;
    store::Manifest at = manifest;
    Result<void> found;
    while (!at.parent_id.empty()) {
      const fs::path named = (dir / at.parent_path).lexically_normal();
      std::error_code ec;
      const fs::path parent = fs::canonical(named, ec);
      auto next = ec ? Result<store::Manifest>(Error(Code::kNotFound, named.string(), "is not there"))
                     : store::read_manifest(parent);
      if (!next || next->id != at.parent_id) {
        found = fail(Code::kNotFound, "parent " + named.string(),
                     next ? "is another image than it was" : next.error().message);
        break;
      }
      if (auto before = known_.find(parent.string()); before != known_.end()) {
        found = before->second;
        break;
      }
      if (std::find(asked.begin(), asked.end(), parent.string()) != asked.end()) {
        found = fail(Code::kCorrupt, "parent " + named.string(), "is its own ancestor");
        break;
      }
      asked.push_back(parent.string());
      dir = parent;
      at = std::move(*next);
    }
    for (const std::string& parent : asked) known_.emplace(parent, found);
    return found;
  }

 private:
  std::map<std::string, Result<void>> known_;  ///< by canonical path: what its own parents are like
};

Result<void> list(Context& context, const fs::path& top) {
  CKPT_TRY_ASSIGN(std::vector<fs::path> found, store::find_images(top, context.progress, context.cancel));
  std::vector<Entry> entries;
  Parents parents;
  for (fs::path& path : found) {
    auto manifest = store::read_manifest(path);
    Result<void> chain = manifest ? parents.check(path, *manifest) : Result<void>();
    entries.push_back({std::move(path), std::move(manifest), std::move(chain)});
  }
  if (context.out.json()) {
    Json images = Json::array();
    for (const Entry& entry : entries) images.push_back(entry_json(entry));
    Json doc = {{"schema", "ckpt.list/1"}, {"path", top.string()}, {"images", images}};
    context.out.data(lay_out_json(doc.dump(-1, ' ', true, Json::error_handler_t::replace)));
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const Entry& entry : entries) rows.push_back(entry_row(entry));
  if (rows.empty()) context.out.info("no process image below " + escape_for_terminal(top.string()));
  else context.out.table({"IMAGE", "KIND", "CREATED", "PID", "SIZE", "PARENT", "COMMAND"}, rows, {3, 4});
  return {};
}

}  // namespace

Command::Run add_list(VerbOptions& app) {
  auto top = std::make_shared<std::string>(".");
  app.add_option("DIR", *top, "Folder to look below").shows_default();
  return [top](Context& context) { return list(context, *top); };
}

}  // namespace ckpt::cli
