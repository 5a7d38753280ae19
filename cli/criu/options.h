// What a caller of criu asks for, by its command line, its configuration files or its RPC: one struct for all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/network/options.h"

namespace ckpt::cli::criu {

/// The criu whose options and messages these are: that of Debian 12.
inline constexpr int kMajor = 3, kMinor = 17, kSublevel = 1;

/// What becomes of control groups in a restore.
enum class Cgroups {
  kMembership,  ///< criu's "soft": the processes go back into their groups, what is gone is made without limits
  kLeave,       ///< "ignore", "none": they stay where criu is
};

struct CgroupRoot {
  std::string controllers;  ///< as in /proc/PID/cgroup: "cpu,cpuacct", "name=systemd", "" of version 2
  std::string path;         ///< takes the place of the group that the first process was in
  bool every = false;       ///< of all hierarchies that have none of their own
};

struct Options {
  int pid = 0;
  std::filesystem::path images_dir = ".";
  std::filesystem::path work_dir;  ///< of the log, the statistics, and files named relatively; empty: images_dir
  std::filesystem::path prev;      ///< seen from images_dir; empty: none
  std::string log_file;            ///< seen from work_dir; empty: standard error
  int log_level = 2;               ///< 1: errors, 2: notes, 3: what is done, with times
  bool leave_running = false, leave_stopped = false;
  bool shell_job = false;
  bool orphan_terminals = false;  ///< a terminal whose master is outside is handed to whoever asked (RPC)
  bool tcp_established = false, tcp_close = false, external_unix = false;
  bool detach = false, sibling = false;
  bool display_stats = false;
  uint64_t ghost_limit = 0;  ///< bytes; 0: ckpt's own
  double timeout_s = 10;
  std::filesystem::path pidfile;  ///< seen from work_dir
  std::vector<std::string> action_scripts;
  std::vector<std::string> exec_command;  ///< takes ckpt's place once the process runs, and is its parent
  int status_fd = -1;
  std::map<std::string, int> inherited;                ///< "pipe:[4711]": ckpt's descriptor that takes its place
  std::map<std::string, std::string> joined;           ///< by kind of namespace (net, pid, ...): a file
  std::string label_profile;                           ///< "apparmor:NAME", in place of labels that there were
  std::string root;                                    ///< of a new mount namespace
  std::map<std::string, state::VethEnd> veths;  ///< of a restore, by the name inside
  bool empty_network = false;
  bool external_network = false;  ///< the network namespace itself is given back
  std::map<std::string, std::string> external_mounts;  ///< of a dump the key of each mount point, else a path for each
  Cgroups cgroups = Cgroups::kMembership;
  std::vector<CgroupRoot> cgroup_roots;
  std::string feature;  ///< check --feature
};

struct CommandLine {
  std::string command;  ///< "dump", "pre-dump", "restore", "check", "dedup", "swrk", "help", "version"
  Options options;
  int socket = -1;  ///< swrk: the descriptor that the requests come from
};

/// The words behind `criu`. What ckpt cannot do in criu's place is refused (kUnsupported) by its name, which no part of
/// the work has begun for. criu's configuration files count, as criu reads them.
Result<CommandLine> parse_command_line(const std::vector<std::string>& words);

/// A configuration file that a request names: its options override those of the request. One that is not there says
/// nothing.
Result<void> apply_config(const std::filesystem::path& file, Options& options);

/// "[controller:]/path", as --cgroup-root has it.
Result<CgroupRoot> parse_cgroup_root(const std::string& text);
/// Adds "pipe:[4711]" (or criu's help's "pipe[4711]"), which `fd` takes the place of, or a namespace, under whatever
/// name. kUnsupported: a resource that ckpt gets from the image.
Result<void> inherit(const std::string& key, int fd, Options& options);
/// "mnt[KEY]:VALUE", or "net[INODE]:KEY", which is given back by a namespace under that key.
Result<void> add_external(const std::string& text, Options& options);
/// "INSIDE=OUTSIDE[@BRIDGE]"
Result<void> add_veth(const std::string& text, Options& options);
/// "soft", "ignore", ...
Result<Cgroups> parse_cgroups(const std::string& mode);

/// The refusal of an option (or a field of a request) that would change what is done.
Error not_supported(const std::string& name, const std::string& why = "");

/// What `criu --help` prints.
std::string help_text();

}  // namespace ckpt::cli::criu
