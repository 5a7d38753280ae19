#include "lib/engine/words.h"

#include <nlohmann/json.hpp>

#include "lib/base/json_reader.h"

namespace ckpt::engine {

namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) { return json.dump(-1, ' ', true, Json::error_handler_t::replace); }

template <class T, class Read>
Result<T> read_as(std::string_view text, const Read& read) {
  if (!json_nests_at_most(text, kMaxJsonDepth)) return fail(Code::kCorrupt, "a member", "sends what is no JSON");
  try {
    return read(Json::parse(text));
  } catch (const Json::exception&) {
    return fail(Code::kCorrupt, "a member", "sends what is not understood");
  }
}

}  // namespace

std::string write_word(std::string_view step, const Result<void>& status, const std::string& data) {
  Json out = {{"step", step}};
  if (status) {
    out["data"] = data;
  } else {
    const Error& error = status.error();
    out["error"] = {{"code", static_cast<int>(error.code)},
                    {"errno", error.sys_errno},
                    {"subject", error.subject},
                    {"message", error.message},
                    {"hint", error.hint},
                    {"target", error.target_state},
                    {"causes", error.causes}};
  }
  return text_of(out);
}

Result<SpokenWord> read_word(std::string_view text) {
  return read_as<SpokenWord>(text, [](const Json& in) {
    SpokenWord out;
    out.step = in.at("step").get<std::string>();
    out.failed = in.contains("error");
    if (!out.failed) {
      out.data = in.at("data").get<std::string>();
      return out;
    }
    const Json& error = in.at("error");
    const int code = error.at("code").get<int>();
    const bool known = code >= 0 && code <= static_cast<int>(Code::kInterrupted);
    out.error = Error(known ? static_cast<Code>(code) : Code::kBug, error.at("subject").get<std::string>(),
                      error.at("message").get<std::string>());
    out.error.sys_errno = error.at("errno").get<int>();
    out.error.hint = error.at("hint").get<std::string>();
    out.error.target_state = error.at("target").get<std::string>();
    out.error.causes = error.at("causes").get<std::vector<std::string>>();
    return out;
  });
}

std::string write_ends(const std::vector<ConnectionEnd>& ends) {
  Json out = Json::array();
  for (const ConnectionEnd& end : ends) {
    Json one = {end.local, end.remote, end.network};
    if (end.has_sequences) one.insert(one.end(), {end.unacknowledged, end.sent, end.received});
    out.push_back(std::move(one));
  }
  return text_of(out);
}

Result<std::vector<ConnectionEnd>> read_ends(std::string_view text) {
  return read_as<std::vector<ConnectionEnd>>(text, [](const Json& in) {
    std::vector<ConnectionEnd> out;
    for (const Json& one : in) {
      ConnectionEnd end;
      end.local = one.at(0).get<std::string>(), end.remote = one.at(1).get<std::string>();
      end.network = one.at(2).get<std::string>();
      end.has_sequences = one.size() > 3;
      if (end.has_sequences) {
        end.unacknowledged = one.at(3).get<uint32_t>(), end.sent = one.at(4).get<uint32_t>();
        end.received = one.at(5).get<uint32_t>();
      }
      out.push_back(std::move(end));
    }
    return out;
  });
}

std::string write_part(const store::Job& job) { return store::to_json(job); }

Result<store::JobMember> read_part(std::string_view text) {
  CKPT_TRY_ASSIGN(store::Job job, store::parse_job(text));
  return std::move(job.members.front());
}

}  // namespace ckpt::engine
