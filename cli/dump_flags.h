// What pre-dump and dump share at the prompt: flags and the report.
#pragma once

#include <functional>
#include <memory>

#include "cli/command.h"
#include "cli/gpu_flags.h"
#include "cli/together.h"
#include "lib/engine/dump.h"

namespace ckpt::cli {

/// --shell-job, --external-pipes and --external-memory, once they are parsed: `finish` says what they mean together.
struct ExternalFlags {
  bool shell_job = false;
  std::string pipes;   ///< empty: not given
  std::string memory;  ///< of a dump; empty: not given
  state::ExternalOptions finish() const;
};
/// What is not given, or `fail`, has the meaning of the verb: an obstacle, or as the dump had it.
void add_external_flags(VerbOptions& app, ExternalFlags& flags, const char* shell_job_text, const char* pipes_text,
                        const std::vector<std::string>& values = {"fail", "keep", "null"});

/// --external-memory: what the tree shares with processes outside.
void add_external_memory_flag(VerbOptions& app, std::string& memory);

struct DumpFlags {
  engine::DumpOptions options;
  std::string dir, prev;
  ExternalFlags external;
  std::string criu_prev;  ///< as criu names it, from `dir`
  std::vector<std::string> external_mounts, files;
  std::string trace;  ///< a file; empty: none
  TogetherFlags together;
  std::string topology;  ///< a file; empty: none
  GpuFlags gpu;
  std::string safe_point_signal;
  std::string hash = "xxh3";
  bool no_compress = false;
  bool non_stop = false;  ///< pre-dump: changes nothing
  bool dry_run = false;
  double timeout_s = 10;
  unsigned hold_limit_s = 600;
  std::string iterations = "auto";
  double downtime_goal_ms = 5;
  std::string validate_sample;  ///< empty: not given
};
/// --files: what the words of it mean. kUsage.
void add_files_flag(VerbOptions& app, std::vector<std::string>& words);
Result<state::FileContents> parse_files(const std::vector<std::string>& words);
void add_socket_flags(VerbOptions& app, capture::SocketOptions& sockets);
/// --hash: what the pages files are hashed with. "sha256" or "xxh3".
void add_hash_flag(VerbOptions& app, std::string& hash);
void add_action_flags(VerbOptions& app, engine::Actions& actions);
/// What criu's users say about its output: accepted, and of no effect.
void add_criu_output_flags(VerbOptions& app);
void add_dump_flags(VerbOptions& app, DumpFlags& flags);
/// Checks values that no parser knows: the pid, folders that are URLs.
Result<void> finish_dump_flags(DumpFlags& flags);

/// Runs `work` where process `pid` is: here, or, with the number that it has there, in the namespaces that it is in.
Result<void> where_it_is(int& pid, Context& context, const std::function<Result<void>()>& work);
/// A tree ends there, and perhaps the worker with it: then what `print` says of that is printed all the same, and
/// `afterwards` is called, once the tree has ended.
Result<void> end_where_it_is(engine::DumpOptions& options, Context& context,
                             const std::function<void(const engine::DumpReport&)>& print,
                             const std::function<void()>& afterwards, const std::function<Result<void>()>& work);
/// --rounds: a number, or "auto".
Result<std::optional<unsigned>> parse_iterations(const std::string& option, const std::string& text);
/// A dump there, whose worker may end with the tree: then its report is printed all the same, once the tree has ended.
Result<void> dump_where_it_is(DumpFlags& flags, Context& context, const std::function<Result<void>()>& work);

/// One dump or pre-dump: alone, or as a member of a job. `verb`: what has to be the same for all members. `dump` takes
/// the image where the process is, and prints.
Result<void> dump_alone_or_together(DumpFlags& flags, Context& context, const std::string& verb,
                                    const std::function<Result<void>(const std::function<Result<void>()>&)>& where,
                                    const std::function<Result<void>()>& dump);

/// The result: a short table for people, one JSON line for programs.
void print_dump_report(Context& context, const char* verb, const DumpFlags& flags, const engine::DumpReport& report);
Result<void> print_dump_estimate(Context& context, const char* verb, const DumpFlags& flags);

}  // namespace ckpt::cli
