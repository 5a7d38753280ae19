#include "cli/restore_copies.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/stats_text.h"
#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/engine/copies.h"
#include "lib/engine/pid_namespace.h"
#include "lib/state/copies_check.h"
#include "lib/state/validate.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

constexpr std::string_view kPlace = "{copy}";
constexpr int kMostCopies = 1000;

std::string of_copy(std::string text, int number) {
  for (size_t at = 0; (at = text.find(kPlace, at)) != std::string::npos;)
    text.replace(at, kPlace.size(), std::to_string(number));
  return text;
}

}  // namespace

Result<int> parse_signal(const std::string& option, const std::string& word) {
  const std::string name = word.starts_with("SIG") ? word.substr(3) : word;
  for (int signal = 1; signal < SIGRTMAX; ++signal) {
    const char* known = ::sigabbrev_np(signal);
    const bool is_name = known != nullptr && name == known;
    if ((is_name || name == std::to_string(signal)) && signal != SIGKILL && signal != SIGSTOP) return signal;
  }
  return fail(Code::kUsage, option + " " + word, "is no signal that a process could take");
}

namespace {

/// "FILE" or "N=FILE": which descriptor gets it.
Result<std::pair<int, std::string>> parse_output(const std::string& word) {
  int number = 1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool is_numbered = error == std::errc() && end != word.data() + word.size() && *end == '=';
  std::string path = is_numbered ? std::string(end + 1, word.data() + word.size()) : word;
  if (!is_numbered) number = 1;
  if (path.empty() || number < 1) return fail(Code::kUsage, "--output " + word, "is neither FILE nor N=FILE");
  if (path.find(kPlace) == std::string::npos)
    return fail(Code::kUsage, "--output " + word, "needs {copy} in it, where the number of the copy goes");
  return std::pair(number, path);
}

/// The files of one copy, by descriptor. Those that did not exist go again, unless they are kept.
class Outputs {
 public:
  Result<void> open(const std::vector<std::pair<int, std::string>>& patterns, int copy) {
    for (const auto& [number, pattern] : patterns) {
      const std::string path = of_copy(pattern, copy);
      constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY | O_CLOEXEC;
      UniqueFd fd(::open(path.c_str(), kFlags | O_EXCL, 0600));
      if (fd) made_.push_back(path);
      else if (errno == EEXIST) fd = UniqueFd(::open(path.c_str(), kFlags, 0600));
      if (!fd) return sys_error(path, "cannot be opened for what the copy writes");
      files_[number] = std::move(fd);
    }
    return {};
  }
  Outputs() = default;
  Outputs(Outputs&&) = default;
  ~Outputs() {
    for (const std::string& path : made_) ::unlink(path.c_str());
  }
  void keep() { made_.clear(); }
  void close() { files_.clear(); }
  std::map<int, int> numbers() const {
    std::map<int, int> out;
    for (const auto& [number, fd] : files_) out[number] = fd.get();
    return out;
  }

 private:
  std::map<int, UniqueFd> files_;
  std::vector<std::string> made_;
};

/// Links of /proc/self/ns, of the namespaces that a copy could have of its own.
nlohmann::ordered_json namespaces_here() {
  nlohmann::ordered_json out;
  for (const char* kind : {"pid", "mnt", "uts", "net", "ipc"}) {
    char link[64] = {};
    const std::string path = fmt::format("/proc/self/ns/{}", kind);
    if (::readlink(path.c_str(), link, sizeof link - 1) > 0) out[kind] = link;
  }
  return out;
}

nlohmann::ordered_json describe(int copy, const std::string& host, const engine::RestoreReport& report) {
  return {{"copy", copy},
          {"pid", report.pid},
          {"pid_outside", report.pid_outside},
          {"hostname", host},
          {"namespaces", namespaces_here()},
          {"processes", report.processes},
          {"threads", report.threads},
          {"pages", report.pages},
          {"bytes", report.bytes},
          {"total_us", report.total_us}};
}

class Copies {
 public:
  Copies(const CopiesFlags& flags, const engine::RestoreOptions& options, Context& context)
      : flags_(flags), options_(options), context_(context) {}

  Result<void> run() {
    Stopwatch watch;
    CKPT_TRY(check());
    CKPT_TRY(prepare());
    engine::CopiesRun run;
    run.count = flags_.count, run.detach = options_.detach;
    run.make = [&](engine::CopyLink& link) { return make(link); };
    run.drop = [&] { drop(); };
    run.gone = [&] {
      for (Outputs& given : given_) given.keep();
    };
    run.running = [&](const std::vector<std::string>& reports) { tell(reports, watch.elapsed_us()); };
    run.ended = [&](int, const std::string& report) {
      if (context_.out.json()) context_.out.data(report);
    };
    CKPT_TRY_ASSIGN(context_.exit_status, engine::run_copies(run, context_.cancel));
    return {};
  }

  /// All that can be refused without making anything.
  Result<void> check() {
    for (const std::string& word : flags_.outputs) {
      CKPT_TRY_ASSIGN(auto output, parse_output(word));
      outputs_.push_back(std::move(output));
    }
    if (!flags_.signal.empty()) {
      CKPT_TRY_ASSIGN(signal_, parse_signal("--copy-signal", flags_.signal));
    }
    CKPT_TRY_ASSIGN(const store::Manifest manifest, store::read_manifest(options_.image));
    restore::CopiesOptions rules;
    rules.shared_files = flags_.shared_files, rules.signal = signal_;
    for (const auto& [number, path] : outputs_) rules.outputs.insert(number);
    CKPT_TRY(restore::validate(manifest.tree));
    restore::Reasons reasons;
    restore::check_copies(manifest.tree, rules, reasons, context_.progress);
    if (!flags_.number_file.empty() && ::access(flags_.number_file.c_str(), F_OK) != 0) {
      reasons.add(sys_error(flags_.number_file, "is to show the number of each copy"));
      reasons.hint("make the file: each copy sees its own number in it, everybody else what is written there");
    }
    for (const auto& process : manifest.tree.processes) {
      for (const auto& thread : process.threads) highest_ = std::max(highest_, thread.tid);
    }
    return reasons.verdict(options_.image.string());
  }

 private:
  /// In this process: what all copies share, and what each is given.
  Result<void> prepare() {
    CKPT_TRY_ASSIGN(common_, engine::read_common_pages(options_, context_.progress, context_.cancel));
    for (int copy = 1; copy <= flags_.count; ++copy) {
      given_.emplace_back();
      CKPT_TRY(given_.back().open(outputs_, copy));
    }
    return {};
  }

  void drop() {
    common_.memory.reset();
    for (Outputs& given : given_) given.close();
  }

  /// In a process of its own, which ends with what this returns.
  int make(engine::CopyLink& link) {
    const auto host = engine::name_host_after(link.number());
    if (!host) return give_up(link, host.error());
    engine::PidNamespaceOptions apart;
    apart.highest = highest_, apart.detach = options_.detach;
    apart.drop = [&] { drop(); };
    const auto code = engine::run_in_pid_namespace(apart, [&] {
      const Result<int> done = restore(link, *host);
      return done ? *done : give_up(link, done.error());
    });
    return code ? *code : give_up(link, code.error());
  }

  int give_up(engine::CopyLink& link, const Error& error) {
    link.failed(error);
    return exit_code(error.code);
  }

  /// In the pid namespace of the copy.
  Result<int> restore(engine::CopyLink& link, const std::string& host) {
    const int copy = link.number();
    if (!flags_.number_file.empty()) CKPT_TRY(engine::show_number(flags_.number_file, copy));
    engine::RestoreOptions options = options_;
    options.common = common_.memory.get();
    options.outputs = given_[static_cast<size_t>(copy - 1)].numbers();
    options.pidfile = of_copy(options_.pidfile.string(), copy);
    options.may_run = [&](int pid, int) -> Result<void> {
      CKPT_TRY(link.made(engine::number_outside(1)));
      return signal_ == 0 ? Result<void>() : engine::signal_number(pid, signal_, copy);
    };
    CKPT_TRY_ASSIGN(const engine::RestoreReport report, engine::restore(options, context_.progress, context_.cancel));
    drop();
    link.runs(describe(copy, host, report).dump());
    if (options_.detach) return 0;
    CKPT_TRY_ASSIGN(const engine::ProcessEnd end, engine::supervise(report.pid, context_.cancel));
    nlohmann::ordered_json doc = {{"schema", "ckpt.restore/1"}, {"event", "ended"},  {"copy", copy},
                                  {"pid", report.pid},          {"pid_outside", report.pid_outside},
                                  {"exit_code", nullptr},       {"signal", nullptr}};
    if (end.signal != 0) doc["signal"] = end.signal;
    else doc["exit_code"] = end.code;
    link.ended(doc.dump() + "\n");
    return end.shell_status();
  }

  void tell(const std::vector<std::string>& reports, uint64_t total_us) {
    auto copies = nlohmann::ordered_json::array();
    for (const std::string& report : reports) copies.push_back(nlohmann::ordered_json::parse(report));
    if (context_.out.json()) {
      const nlohmann::ordered_json doc = {{"schema", "ckpt.restore/1"}, {"event", "done"},
                                          {"dry_run", false},           {"copies", copies},
                                          {"bytes_common", common_.bytes}, {"total_us", total_us}};
      context_.out.data(doc.dump() + "\n");
      std::fflush(stdout);  // the processes may write to the same stream from now on
      return;
    }
    for (const auto& copy : copies)
      context_.out.info(fmt::format("copy {}: process {}, outside {}, on host {}", copy["copy"].get<int>(),
                                    copy["pid"].get<int>(), copy["pid_outside"].get<int>(),
                                    escape_for_terminal(copy["hostname"].get<std::string>())));
    context_.out.info(fmt::format("restored {} copies, which share {} until they write to it; {}", copies.size(),
                                  human_bytes(common_.bytes), human_us(total_us)));
  }

  const CopiesFlags& flags_;
  const engine::RestoreOptions& options_;
  Context& context_;
  std::vector<std::pair<int, std::string>> outputs_;
  int signal_ = 0, highest_ = 0;
  engine::CommonPages common_;
  std::vector<Outputs> given_;  ///< by copy
};

}  // namespace

void add_copies_flags(VerbOptions& app, CopiesFlags& flags) {
  app.add_option("--copies", flags.count, "With --new-pidns: so many copies side by side, all of them or none")
      .in_range(1, kMostCopies)
      .type_name("COUNT");
  app.add_option("--output", flags.outputs,
                 "With --copies: descriptor N (1: standard output) of copy 3 is FILE-3 for FILE-{copy}")
      .type_name("[N=]FILE")
      .one_value_each();
  app.add_option("--copy-file", flags.number_file, "With --copies: a file in which each copy finds its number")
      .type_name("FILE");
  app.add_option("--copy-signal", flags.signal,
                 "With --copies: the first that each gets once it runs, with its number as the value")
      .type_name("SIGNAL");
  app.add_option("--share-file", flags.shared_files,
                 "With --copies: all may write to this file; a path or a pattern, more than once if need be")
      .type_name("FILE")
      .one_value_each();
}

Result<void> check_copies_flags(const CopiesFlags& flags, const engine::RestoreOptions& options) {
  if (flags.count == 0) {
    const char* lost = !flags.outputs.empty()        ? "--output"
                       : !flags.number_file.empty()  ? "--copy-file"
                       : !flags.signal.empty()       ? "--copy-signal"
                       : !flags.shared_files.empty() ? "--share-file"
                                                     : nullptr;
    if (lost != nullptr) return fail(Code::kUsage, lost, "goes with --copies");
    return {};
  }
  if (!options.new_pid_namespace)
    return Error(Code::kUsage, "--copies", "needs --new-pidns: all copies have the numbers of the image");
  if (options.lazy)
    return fail(Code::kUsage, "--lazy", "does not go with --copies, whose memory is read once for all of them");
  if (options.actions.status_fd >= 0) return fail(Code::kUsage, "--status-fd", "does not go with --copies");
  if (!options.pidfile.empty() && options.pidfile.string().find(kPlace) == std::string::npos)
    return fail(Code::kUsage, "--pidfile", "needs {copy} in it, where the number of the copy goes");
  return {};
}

Result<void> restore_copies(const CopiesFlags& flags, const engine::RestoreOptions& options, Context& context) {
  Copies copies(flags, options, context);
  return options.dry_run ? copies.check() : copies.run();
}

}  // namespace ckpt::cli
