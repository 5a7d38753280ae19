#include "formats/zarr/hierarchy.h"

#include <nlohmann/json.hpp>

#include "formats/zarr/array.h"
#include "lib/base/json_reader.h"

namespace ckpt::formats {

namespace {

/// The text of the value that comes next, which is passed by.
std::string_view take_value(JsonReader& reader, std::string_view text) {
  reader.peek();
  const size_t begin = reader.position().at;
  reader.skip();
  return reader.failed() ? std::string_view() : text.substr(begin, reader.position().at - begin);
}

/// Calls `each(name, value)` for the members of an object.
template <class Each>
Result<void> for_each_member(std::string_view text, Each each) {
  JsonReader reader(text, {kMaxZarrNesting, text.size() + 1});
  if (reader.peek() != '{') return fail(Code::kCorrupt, "", "malformed metadata: no JSON object");
  reader.enter();
  for (bool first = true; reader.next('{', first); first = false) {
    const std::string name(reader.key());
    const std::string_view value = take_value(reader, text);
    if (reader.failed()) break;
    each(name, value);
  }
  reader.finish();
  if (reader.failed()) return fail(Code::kCorrupt, "", "malformed metadata: it " + reader.fault());
  return {};
}

/// The value of a member; empty: there is none, or the text is malformed.
std::string_view member(std::string_view text, std::string_view name) {
  std::string_view out;
  (void)for_each_member(text, [&](const std::string& key, std::string_view value) {
    if (key == name) out = value;
  });
  return out;
}

}  // namespace

Result<std::vector<ZarrNode>> consolidated_v2(std::string_view text) {
  std::vector<ZarrNode> out;
  const std::string_view metadata = member(text, "metadata");
  if (metadata.empty()) return fail(Code::kCorrupt, "", "malformed .zmetadata: it has no metadata");
  CKPT_TRY(for_each_member(metadata, [&](const std::string& key, std::string_view value) {
    constexpr std::string_view kTail = "/.zarray";
    if (key == ".zarray") out.push_back({"", value});
    else if (key.size() > kTail.size() && key.ends_with(kTail))
      out.push_back({key.substr(0, key.size() - kTail.size()), value});
  }));
  return out;
}

Result<std::vector<ZarrNode>> consolidated_v3(std::string_view text) {
  std::vector<ZarrNode> out;
  const std::string_view consolidated = member(text, "consolidated_metadata");
  if (consolidated.empty() || consolidated == "null") return out;
  const std::string_view metadata = member(consolidated, "metadata");
  if (metadata.empty()) return fail(Code::kCorrupt, "", "malformed zarr.json: its consolidated metadata holds none");
  CKPT_TRY(for_each_member(metadata, [&](const std::string& key, std::string_view value) {
    if (node_type(value) == "array") out.push_back({key, value});
  }));
  return out;
}

std::string node_type(std::string_view text) {
  const std::string_view value = member(text, "node_type");
  return value == "\"array\"" || value == "\"group\"" ? std::string(value.substr(1, value.size() - 2)) : "";
}

std::string_view attributes_of(std::string_view text) { return member(text, "attributes"); }

bool same_array(std::string_view a, std::string_view b) {
  if (!json_nests_at_most(a, kMaxZarrNesting) || !json_nests_at_most(b, kMaxZarrNesting)) return false;
  nlohmann::json left = nlohmann::json::parse(a, nullptr, false), right = nlohmann::json::parse(b, nullptr, false);
  if (!left.is_object() || !right.is_object()) return false;
  for (nlohmann::json* side : {&left, &right}) side->erase("attributes");
  return left == right;
}

}  // namespace ckpt::formats
