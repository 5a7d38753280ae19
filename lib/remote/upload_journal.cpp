#include "lib/remote/upload_journal.h"

#include <nlohmann/json.hpp>

namespace ckpt::remote {

namespace {

using nlohmann::json;

constexpr const char* kSchema = "ckpt.upload/1";

bool has_string(const json& doc, const char* member) { return doc.contains(member) && doc[member].is_string(); }

bool parse_file(const json& doc, UploadJournal::File& out) {
  const bool sound = doc.is_object() && has_string(doc, "name") && has_string(doc, "upload") && doc.contains("size") &&
                     doc["size"].is_number_unsigned() && doc.contains("parts") && doc["parts"].is_array();
  if (!sound) return false;
  out.name = doc["name"], out.size = doc["size"], out.upload = doc["upload"];
  for (const json& part : doc["parts"]) {
    if (!part.is_string()) return false;
    out.parts.push_back(part);
  }
  return true;
}

}  // namespace

std::string to_json(const UploadJournal& journal) {
  json files = json::array();
  for (const UploadJournal::File& file : journal.files)
    files.push_back({{"name", file.name}, {"size", file.size}, {"upload", file.upload}, {"parts", file.parts}});
  const json doc = {{"schema", kSchema}, {"plan", journal.plan}, {"files", files}};
  return doc.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<UploadJournal> parse_upload_journal(const std::string& text, const std::string& subject) {
  const json doc = json::parse(text, nullptr, false);
  UploadJournal out;
  bool sound = doc.is_object() && has_string(doc, "schema") && doc["schema"] == kSchema && has_string(doc, "plan") &&
               doc.contains("files") && doc["files"].is_array();
  if (sound) {
    out.plan = doc["plan"];
    for (const json& file : doc["files"]) sound = sound && parse_file(file, out.files.emplace_back());
  }
  return sound ? Result<UploadJournal>(std::move(out)) : fail(Code::kCorrupt, subject, "is no journal of an upload");
}

}  // namespace ckpt::remote
