#include "lib/migrate/words.h"


#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/digest.h"
#include "lib/base/hex.h"
#include "lib/migrate/link.h"

namespace ckpt::migrate {

namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& doc) { return doc.dump(-1, ' ', false, Json::error_handler_t::replace); }

Error not_understood(const char* what) { return Error(Code::kCorrupt, what, "is not understood"); }

/// A member of the type that it has to have; what is not there keeps its value.
template <class T>
bool take(const Json& doc, const char* name, T& value) {
  const auto found = doc.find(name);
  if (found == doc.end()) return true;
  try {
    value = found->get<T>();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

Result<RestoreWishes> parse_wishes(const Json& doc) {
  constexpr const char* kKnown[] = {"dir",         "new_pidns",     "external_pipes_null",
                                    "map_address", "allow_changed", "drop_labels", "lazy_silence_us"};
  RestoreWishes out;
  for (const auto& [name, value] : doc.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown))
      return fail(Code::kUnsupported, name, "is an option of a newer ckpt");
  }
  if (!take(doc, "dir", out.dir) || !take(doc, "new_pidns", out.new_pid_namespace) ||
      !take(doc, "external_pipes_null", out.pipes_to_null) || !take(doc, "map_address", out.addresses) ||
      !take(doc, "allow_changed", out.allow_changed) || !take(doc, "drop_labels", out.drop_labels) ||
      !take(doc, "lazy_silence_us", out.lazy_silence_us))
    return not_understood("an option");
  if (out.dir.find('\0') != std::string::npos || (!out.dir.empty() && out.dir[0] != '/'))
    return fail(Code::kUsage, "--dir", "is no absolute path");
  return out;
}

}  // namespace

std::string to_json(const Hello& hello) {
  Json doc = {{"version", kVersion}, {"id", hello.id}};
  if (hello.asks) {
    doc["ask"] = true;
    return dump(doc);
  }
  doc["memory"] = hello.memory;
  doc["silence_us"] = hello.silence_us;
  doc["pids"] = hello.pids;
  doc["host"] = {{"name", hello.host.hostname},
                 {"kernel", hello.host.kernel},
                 {"machine", hello.host.machine},
                 {"cpu_model", hello.host.cpu_model},
                 {"cpu_flags", hello.host.cpu_flags},
                 {"xcr0", hello.host.xcr0}};
  const RestoreWishes& wishes = hello.wishes;
  doc["restore"] = {{"new_pidns", wishes.new_pid_namespace}, {"external_pipes_null", wishes.pipes_to_null}};
  if (!wishes.dir.empty()) doc["restore"]["dir"] = wishes.dir;
  if (!wishes.addresses.empty()) doc["restore"]["map_address"] = wishes.addresses;
  if (!wishes.allow_changed.empty()) doc["restore"]["allow_changed"] = wishes.allow_changed;
  if (wishes.drop_labels) doc["restore"]["drop_labels"] = true;  // an older ckpt refuses what it does not know
  if (wishes.lazy_silence_us != 0) doc["restore"]["lazy_silence_us"] = wishes.lazy_silence_us;
  return dump(doc);
}

Result<Hello> parse_hello(std::string_view text) {
  const Json doc = Json::parse(text, nullptr, false);
  Hello out;
  int version = 0;
  if (!doc.is_object() || !take(doc, "version", version)) return not_understood("the first frame");
  if (version != kVersion) {
    return Error(Code::kUnsupported, "", "the other end's ckpt speaks version " + std::to_string(version) +
                                             " of the stream, this one " + std::to_string(kVersion));
  }
  if (!take(doc, "id", out.id) || !is_id(out.id) || !take(doc, "ask", out.asks) || !take(doc, "memory", out.memory) ||
      !take(doc, "pids", out.pids) || !take(doc, "silence_us", out.silence_us))
    return not_understood("the first frame");
  constexpr uint64_t kMostSilenceUs = 1'000'000'000'000;
  if (out.silence_us == 0 || out.silence_us > kMostSilenceUs)
    return fail(Code::kUsage, "--timeout", "is not between a microsecond and a million seconds");
  const Json empty = Json::object();
  const Json host = doc.contains("host") ? doc["host"] : empty;
  const Json wishes = doc.contains("restore") ? doc["restore"] : empty;
  if (!host.is_object() || !wishes.is_object() || !take(host, "name", out.host.hostname) ||
      !take(host, "kernel", out.host.kernel) || !take(host, "machine", out.host.machine) ||
      !take(host, "cpu_model", out.host.cpu_model) || !take(host, "cpu_flags", out.host.cpu_flags) ||
      !take(host, "xcr0", out.host.xcr0))
    return not_understood("the first frame");
  CKPT_TRY_ASSIGN(out.wishes, parse_wishes(wishes));
  return out;
}

std::string_view word_for(Verdict verdict) {
  switch (verdict) {
    case Verdict::kRuns: return "runs";
    case Verdict::kNot: return "not";
    case Verdict::kPartly: return "partly";
    case Verdict::kLost: return "lost";
    case Verdict::kUnknown: break;
  }
  return "unknown";
}

Verdict parse_verdict(std::string_view word) {
  for (const Verdict verdict : {Verdict::kRuns, Verdict::kNot, Verdict::kPartly, Verdict::kLost}) {
    if (word == word_for(verdict)) return verdict;
  }
  return Verdict::kUnknown;
}

std::string to_json(const Error& error) {
  constexpr size_t kMostCauses = 64, kMostText = 4096;
  auto cut = [](const std::string& text) { return text.substr(0, kMostText); };
  Json doc = {{"code", static_cast<int>(error.code)},
              {"subject", cut(error.subject)},
              {"message", cut(error.message)},
              {"hint", cut(error.hint)},
              {"causes", Json::array()}};
  for (size_t i = 0; i < std::min(error.causes.size(), kMostCauses); ++i) doc["causes"].push_back(cut(error.causes[i]));
  return dump(doc);
}

Error parse_error(std::string_view text, const std::string& peer) {
  const Json doc = Json::parse(text, nullptr, false);
  Error out(Code::kIo, "", "gave up");
  int code = static_cast<int>(Code::kIo);
  if (!doc.is_object() || !take(doc, "code", code) || !take(doc, "subject", out.subject) ||
      !take(doc, "message", out.message) || !take(doc, "hint", out.hint) || !take(doc, "causes", out.causes))
    return Error(Code::kIo, peer, "gave up, and what it says of it is not understood");
  const bool known = code >= 0 && code <= static_cast<int>(Code::kInterrupted);
  out.code = known ? static_cast<Code>(code) : Code::kIo;
  // Only this end's source can be left altered.
  if (out.code == Code::kTargetAltered) out.code = Code::kIo;
  out.subject = out.subject.empty() ? peer : peer + ": " + out.subject;
  return out;
}

}  // namespace ckpt::migrate
