#include "lib/repository/documents.h"

#include <nlohmann/json.hpp>

#include "lib/base/hex.h"
#include "lib/base/json_reader.h"
#include "lib/base/json_writer.h"
#include "lib/repository/backend.h"
#include "lib/repository/pack.h"
#include "lib/repository/tree.h"

namespace ckpt::repository {

namespace {

using Json = nlohmann::json;

/// Members of an object that came from elsewhere.
class Members {
 public:
  Members(std::string_view text, const char* schema, const std::string& subject) : subject_(subject) {
    if (text.size() <= kMaxDocument && json_nests_at_most(text, 4))
      json_ = Json::parse(text.begin(), text.end(), nullptr, false);
    if (!json_.is_object()) bad("it is no JSON object");
    const std::string says = get<std::string>("schema", "");
    const std::string_view wanted(schema);
    if (says == wanted || !error_.message.empty()) return;
    const size_t kind = wanted.rfind('/') + 1;
    if (says.substr(0, kind) == wanted.substr(0, kind))
      error_ = Error(Code::kUnsupported, subject, "is of a version that this ckpt does not know: " + says);
    else
      bad("is another kind of document");
  }

  template <class T>
  T get(const char* name, T missing) {
    const auto found = json_.is_object() ? json_.find(name) : json_.end();
    if (!json_.is_object() || found == json_.end()) return missing;
    if constexpr (std::is_same_v<T, std::string>) {
      if (found->is_string()) return found->template get<std::string>();
    } else {
      if (found->is_number_unsigned()) return found->template get<uint64_t>();
    }
    bad(name);
    return missing;
  }

  std::vector<std::string> names(const char* name) {
    std::vector<std::string> out;
    const auto found = json_.is_object() ? json_.find(name) : json_.end();
    if (!json_.is_object() || found == json_.end()) return out;
    if (!found->is_array()) return bad(name), out;
    for (const Json& one : *found) {
      if (!one.is_string()) return bad(name), out;
      out.push_back(one.get<std::string>());
    }
    return out;
  }

  void bad(const std::string& what) {
    if (error_.message.empty()) error_ = Error(Code::kCorrupt, subject_, "cannot be: " + what);
  }
  Result<void> result() const { return error_.message.empty() ? Result<void>() : Result<void>(error_); }

 private:
  const std::string& subject_;
  Json json_;
  Error error_;
};

/// So that a terminal can show it and two can be compared.
bool is_time(std::string_view text) {
  return text.size() >= 20 && text.size() <= 40 && text.back() == 'Z' &&
         text.find_first_not_of("0123456789-:.TZ") == std::string_view::npos;
}

std::string one_line(JsonWriter& json) {
  std::string text = std::move(json).finish();
  return text;
}

}  // namespace

std::string to_json(const Config& config) {
  JsonWriter json(SIZE_MAX);
  json.row_of("schema", "ckpt.store/1", "id", config.id, "key_check", config.key_check);
  return one_line(json);
}

Result<Config> parse_config(std::string_view text, const std::string& subject) {
  Members in(text, "ckpt.store/1", subject);
  Config out;
  out.id = in.get<std::string>("id", ""), out.key_check = in.get<std::string>("key_check", "");
  CKPT_TRY(in.result());
  return out;
}

Result<void> check_name(const std::string& name) {
  if (is_object_name(name) && name.size() <= 128) return {};
  return Error(Code::kUsage, name, "is no name in a store")
      .with_hint("letters, digits and -._+=,: at most 128 of them, no dot or dash in front");
}

std::string encode_ref(const Ref& ref, const IdBuilder& seal) {
  JsonWriter json(SIZE_MAX);
  json.row_of("schema", "ckpt.ref/1", "name", ref.name, "created", ref.created, "pushed", ref.pushed, "kind", ref.kind,
              "format", ref.format, "path", ref.path, "bytes", ref.bytes, "files", ref.files, "images", ref.images,
              "tree_bytes", ref.tree_bytes, "tree", bytes_to_hex(as_bytes(ref.tree)));
  std::string out = one_line(json);
  return out += to_hex(seal.of(as_bytes(out))) + "\n";
}

Result<Ref> parse_draft(std::string_view text, const IdBuilder& seal, const std::string& subject) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos ||
      text.substr(end + 1) != to_hex(seal.of(as_bytes(text.substr(0, end + 1)))) + "\n")
    return fail(Code::kCorrupt, subject, "does not match its digest");
  Members in(text.substr(0, end), "ckpt.ref/1", subject);
  Ref out;
  out.name = in.get<std::string>("name", "");
  out.created = in.get<std::string>("created", ""), out.pushed = in.get<std::string>("pushed", "");
  out.kind = in.get<std::string>("kind", ""), out.format = in.get<std::string>("format", "");
  out.path = in.get<std::string>("path", "");
  out.bytes = in.get<uint64_t>("bytes", 0), out.files = in.get<uint64_t>("files", 0);
  out.images = in.get<uint64_t>("images", 0), out.tree_bytes = in.get<uint64_t>("tree_bytes", 0);
  const auto tree = in.get<std::string>("tree", "");
  out.tree.resize(tree.size() / 2);
  if (!check_name(out.name)) in.bad("name");
  if (!is_time(out.created) || !is_time(out.pushed)) in.bad("time");
  if (out.kind != "process" && out.kind != "model") in.bad("kind");
  if (!out.path.empty() && !is_inner_path(out.path)) in.bad("path");
  if (tree.empty() || !bytes_of_hex(tree, std::as_writable_bytes(std::span(out.tree))) || out.tree_bytes > kMaxTree)
    in.bad("tree");
  CKPT_TRY(in.result());
  return out;
}

Result<Ref> parse_ref(std::string_view text, const std::string& name, const IdBuilder& seal,
                      const std::string& subject) {
  CKPT_TRY_ASSIGN(Ref out, parse_draft(text, seal, subject));
  if (out.name != name) return fail(Code::kCorrupt, subject, "has what was pushed under another name");
  return out;
}

std::string to_json(const Marker& marker) {
  JsonWriter json(SIZE_MAX);
  json.row('{');
  json.members("schema", "ckpt.pushing/1", "kind", marker.kind, "host", marker.host, "boot_id", marker.boot_id,
               "pid_namespace", marker.pid_namespace, "pid", marker.pid, "pid_start", marker.pid_start, "since",
               marker.since, "refreshed", marker.refreshed, "honoured", marker.honoured);
  json.close();
  return one_line(json);
}

Result<Marker> parse_marker(std::string_view text, const std::string& subject) {
  Members in(text, "ckpt.pushing/1", subject);
  Marker out;
  out.host = in.get<std::string>("host", ""), out.boot_id = in.get<std::string>("boot_id", "");
  out.pid_namespace = in.get<uint64_t>("pid_namespace", 0), out.pid = in.get<uint64_t>("pid", 0);
  out.pid_start = in.get<uint64_t>("pid_start", 0);
  out.since = in.get<std::string>("since", ""), out.refreshed = in.get<std::string>("refreshed", "");
  out.honoured = in.names("honoured"), out.kind = in.get<std::string>("kind", "push");
  if (out.kind != "push" && out.kind != "gc" && out.kind != "repair") in.bad("kind");
  if (!is_time(out.since) || !is_time(out.refreshed)) in.bad("time");
  CKPT_TRY(in.result());
  return out;
}

std::string to_json(const Condemned& condemned) {
  JsonWriter json(SIZE_MAX);
  json.row('{');
  json.members("schema", "ckpt.condemned/1", "since", condemned.since, "packs", condemned.packs);
  json.close();
  return one_line(json);
}

std::string to_json(const TakenForDead& taken) {
  JsonWriter json(SIZE_MAX);
  json.row_of("schema", "ckpt.taken-for-dead/1", "since", taken.since);
  return one_line(json);
}

Result<TakenForDead> parse_taken_for_dead(std::string_view text, const std::string& subject) {
  Members in(text, "ckpt.taken-for-dead/1", subject);
  TakenForDead out;
  out.since = in.get<std::string>("since", "");
  if (!is_time(out.since)) in.bad("time");
  CKPT_TRY(in.result());
  return out;
}

Result<Condemned> parse_condemned(std::string_view text, const std::string& subject) {
  Members in(text, "ckpt.condemned/1", subject);
  Condemned out;
  out.since = in.get<std::string>("since", ""), out.packs = in.names("packs");
  if (!is_time(out.since)) in.bad("time");
  for (const std::string& pack : out.packs) {
    if (!is_pack_name(pack)) in.bad("packs");
  }
  CKPT_TRY(in.result());
  return out;
}

}  // namespace ckpt::repository
