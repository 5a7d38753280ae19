// list: the process images below a folder, from their manifests alone.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "lib/base/text.h"
#include "lib/store/image.h"
#include "lib/base/json_layout.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

struct Entry {
  fs::path path;
  Result<store::Manifest> manifest;

  uint64_t bytes() const {
    uint64_t sum = 0;
    if (manifest) {
      for (const store::StoredFile& file : manifest->files) sum += file.size;
    }
    return sum;
  }
};

/// Links are not followed, images not entered; a folder that may not be read is passed over with a note.
Result<std::vector<Entry>> find_images(Context& context, const fs::path& top) {
  std::vector<Entry> out;
  std::error_code ec;
  if (!fs::is_directory(top, ec)) return fail(Code::kNotFound, top.string(), "there is no such folder");
  if (store::ImageReader::looks_like_image(top)) {
    out.push_back({top, store::read_manifest(top)});
    return out;
  }
  std::vector<fs::path> pending = {top};
  while (!pending.empty()) {
    CKPT_TRY(context.cancel.check());
    const fs::path dir = std::move(pending.back());
    pending.pop_back();
    fs::directory_iterator it(dir, ec), end;
    for (; !ec && it != end; it.increment(ec)) {
      if (it->symlink_status(ec).type() != fs::file_type::directory) continue;
      // A folder that ckpt is still writing, or never finished.
      if (it->path().filename().string().rfind(".ckpt-staging-", 0) == 0) continue;
      if (store::ImageReader::looks_like_image(it->path())) out.push_back({it->path(), store::read_manifest(it->path())});
      else pending.push_back(it->path());
    }
    if (ec) context.out.info(escape_for_terminal(dir.string()) + ": cannot be listed: " + ec.message());
  }
  std::sort(out.begin(), out.end(), [](const Entry& a, const Entry& b) { return a.path < b.path; });
  return out;
}

Json entry_json(const Entry& entry) {
  if (!entry.manifest) return {{"path", entry.path.string()}, {"ok", false}, {"error", entry.manifest.error().text()}};
  const store::Manifest& m = *entry.manifest;
  return {{"path", entry.path.string()}, {"ok", true},
          {"id", m.id},                  {"image_kind", m.kind},
          {"created", m.created},        {"pid", m.tree.root().pid},
          {"arguments", m.tree.root().arguments}, {"parent_path", m.parent_path},
          {"parent_id", m.parent_id},    {"bytes", entry.bytes()}};
}

std::vector<std::string> entry_row(const Entry& entry) {
  if (!entry.manifest) return {entry.path.string(), "damaged", "", "", "", "", entry.manifest.error().message};
  const store::Manifest& m = *entry.manifest;
  std::string command;
  for (const std::string& word : m.tree.root().arguments) command += (command.empty() ? "" : " ") + word;
  return {entry.path.string(), m.kind, m.created, std::to_string(m.tree.root().pid), human_bytes(entry.bytes()),
          m.parent_path.empty() ? "-" : m.parent_path, command};
}

Result<void> list(Context& context, const fs::path& top) {
  CKPT_TRY_ASSIGN(std::vector<Entry> entries, find_images(context, top));
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

Command::Run add_list(CLI::App& app) {
  auto top = std::make_shared<std::string>(".");
  app.add_option("DIR", *top, "Folder to look below")->capture_default_str();
  return [top](Context& context) { return list(context, *top); };
}

}  // namespace ckpt::cli
