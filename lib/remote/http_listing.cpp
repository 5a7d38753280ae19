#include "lib/remote/http_listing.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/remote/url.h"

namespace ckpt::remote {

namespace {

using Json = nlohmann::json;

std::optional<uint64_t> number(const Json& object, const char* name) {
  auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? std::optional(found->get<uint64_t>()) : std::nullopt;
}

std::string text(const Json& object, const char* name) {
  auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<ListedName> parse_json_index(const Json& list) {
  std::vector<ListedName> out;
  for (const Json& entry : list) {
    if (!entry.is_object()) continue;
    const std::string type = text(entry, "type");
    out.push_back({text(entry, "name"), type == "directory", number(entry, "size")});
  }
  return out;
}

std::string unescape(const std::string& link) {
  constexpr std::string_view kEntity = "&amp;";
  std::string out;
  size_t at = 0;
  for (size_t next; (next = link.find(kEntity, at)) != std::string::npos; at = next + kEntity.size())
    out.append(link, at, next - at) += '&';
  return percent_decode(out.append(link, at));
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

}  // namespace

std::vector<ListedName> parse_index(const std::string& page) {
  std::vector<ListedName> out;
  if (const Json json = Json::parse(page, nullptr, false); json.is_array()) {
    out = parse_json_index(json);
  } else {
    constexpr std::string_view kLink = "href=";
    for (size_t at = 0; (at = page.find(kLink, at)) != std::string::npos;) {
      at += kLink.size();
      if (at >= page.size() || (page[at] != '"' && page[at] != '\'')) continue;
      const size_t end = page.find(page[at], at + 1);
      if (end == std::string::npos) break;
      std::string link = page.substr(at + 1, end - at - 1);
      at = end;
      if (link.starts_with("./")) link.erase(0, 2);
      const bool folder = link.ends_with('/');
      if (folder) link.pop_back();
      if (link.find_first_of("?#:") == std::string::npos) out.push_back({unescape(link), folder, std::nullopt});
    }
  }
  std::set<std::string> seen;
  std::erase_if(out, [&](const ListedName& e) { return !is_plain_name(e.name) || !seen.insert(e.name).second; });
  return out;
}

std::optional<std::vector<ListedFile>> parse_repository(const std::string& json) {
  const Json list = Json::parse(json, nullptr, false);
  if (!list.is_array()) return std::nullopt;
  std::vector<ListedFile> out;
  for (const Json& entry : list) {
    if (!entry.is_object()) return std::nullopt;
    if (text(entry, "type") == "file") out.push_back({text(entry, "path"), number(entry, "size").value_or(0)});
  }
  return out;
}

std::optional<std::string> repository_query(const std::string& path) {
  constexpr std::string_view kResolve = "/resolve/";
  const size_t at = path.find(kResolve);
  if (at == std::string::npos || at == 0) return std::nullopt;
  std::string rest = path.substr(at + kResolve.size());
  while (!rest.empty() && rest.back() == '/') rest.pop_back();
  if (rest.empty()) return std::nullopt;
  return "/api/models" + path.substr(0, at) + "/tree/" + rest + "?recursive=true";
}

std::vector<std::string> parse_weight_map(const std::string& json) {
  const Json doc = Json::parse(json, nullptr, false);
  std::set<std::string> names;
  if (doc.is_object() && doc.contains("weight_map") && doc["weight_map"].is_object()) {
    for (const auto& [key, file] : doc["weight_map"].items()) {
      if (file.is_string()) names.insert(file.get<std::string>());
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace ckpt::remote
