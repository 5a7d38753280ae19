// criu's command line. getopt_long reads it, as it does in criu: short options in one word, abbreviated long ones.
#include "cli/criu/options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <getopt.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <functional>

#include "lib/base/io.h"

namespace ckpt::cli::criu {

namespace {

namespace fs = std::filesystem;

using Apply = Result<void> (*)(Options&, const std::string& value);

enum class Value { kNone, kRequired, kOptional };

/// One option of criu's. Without `apply` it changes nothing here (`why` says why), or is refused.
struct Known {
  const char* name;
  char letter;  ///< 0: none
  Value value;
  Apply apply;
  const char* why = nullptr;
  bool refused = false;
};

Result<int64_t> number(const std::string& text, const char* option) {
  int64_t out = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out < 0)
    return fail(Code::kUsage, option, fmt::format("'{}' is not a number", text));
  return out;
}

/// Sizes have a K, M or G behind them.
Result<uint64_t> size(const std::string& text, const char* option) {
  uint64_t factor = 1;
  std::string digits = text;
  if (!text.empty() && std::isalpha(static_cast<unsigned char>(text.back())) != 0) {
    const size_t power =
        std::string("KMG").find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
    if (power == std::string::npos) return fail(Code::kUsage, option, fmt::format("'{}' is not a size", text));
    factor = uint64_t{1} << (10 * (power + 1));
    digits.pop_back();
  }
  CKPT_TRY_ASSIGN(const int64_t value, number(digits, option));
  if (static_cast<uint64_t>(value) > (uint64_t{1} << 62) / factor)
    return fail(Code::kUsage, option, fmt::format("'{}' is too large", text));
  return static_cast<uint64_t>(value) * factor;
}

Result<int> small_number(const std::string& text, const char* option) {
  CKPT_TRY_ASSIGN(const int64_t value, number(text, option));
  if (value > 1 << 30) return fail(Code::kUsage, option, fmt::format("'{}' is too large", text));
  return static_cast<int>(value);
}

template <bool Options::*member>
Result<void> set_flag(Options& options, const std::string&) {
  options.*member = true;
  return {};
}

Result<void> set_pid(Options& options, const std::string& value) {
  CKPT_TRY_ASSIGN(options.pid, small_number(value, "--tree"));
  if (options.pid == 0) return fail(Code::kUsage, "--tree 0", "is not a pid");
  return {};
}

Result<void> set_level(Options& options, const std::string& value) {
  if (value.find_first_not_of('v') == std::string::npos) {  // -v, -vvv: one more for each
    options.log_level += 1 + static_cast<int>(value.size());
    return {};
  }
  CKPT_TRY_ASSIGN(options.log_level, small_number(value, "--verbosity"));
  return {};
}

struct NamespaceKind {
  const char* name;
  int flag;
};
constexpr NamespaceKind kNamespaceKinds[] = {
    {"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC}, {"uts", CLONE_NEWUTS}, {"mnt", CLONE_NEWNS}, {"pid", CLONE_NEWPID}};

/// "KIND:PATH", or "KIND:PID"
Result<void> set_joined(Options& options, const std::string& value) {
  const size_t colon = value.find(':');
  const std::string kind = value.substr(0, colon), where = colon == std::string::npos ? "" : value.substr(colon + 1);
  if (where.empty() || where.find(',') != std::string::npos)
    return fail(Code::kUsage, "--join-ns " + value, "is not of the form KIND:PATH or KIND:PID");
  const bool is_pid = where.find_first_not_of("0123456789") == std::string::npos;
  options.joined[kind] = is_pid ? fmt::format("/proc/{}/ns/{}", where, kind) : where;
  return {};
}

/// What is in a network namespace is seen to by whoever restores it.
Result<void> set_empty(Options& options, const std::string& value) {
  if (value != "net") return not_supported("--empty-ns " + value);
  options.empty_network = true;
  return {};
}

/// "INSIDE=OUTSIDE[@BRIDGE]"
Result<void> set_veth(Options& options, const std::string& value) {
  CKPT_TRY_ASSIGN(const auto ends, state::parse_veths({value}));
  for (const auto& [inside, end] : ends) options.veths[inside] = end;
  return {};
}

/// "fd[NUM]:RES"
Result<void> set_inherited(Options& options, const std::string& value) {
  const size_t close = value.find("]:");
  if (!value.starts_with("fd[") || close == std::string::npos)
    return fail(Code::kUsage, "--inherit-fd " + value, "is not of the form fd[NUMBER]:RESOURCE");
  CKPT_TRY_ASSIGN(const int fd, small_number(value.substr(3, close - 3), "--inherit-fd"));
  return inherit(value.substr(close + 2), fd, options);
}

Result<void> set_cpu_cap(Options&, const std::string& value) {
  if (value.empty() || (value.find('^') == std::string::npos && value.find("none") == std::string::npos)) return {};
  return not_supported("--cpu-cap " + value, "a restore checks the processor's abilities in any case");
}

Result<void> set_network_lock(Options&, const std::string& value) {
  if (value == "nftables" || value == "iptables") return {};
  return not_supported("--network-lock " + value, "connections that go with the image are held off by nftables");
}

Result<void> set_unix(Options& options, const std::string& value) {
  if (!value.empty()) return not_supported("--ext-unix-sk=" + value, "leave the list out: all of them are meant");
  options.external_unix = true;
  return {};
}

/// "KEY:VALUE"
Result<void> set_mount(Options& options, const std::string& value) {
  const size_t colon = value.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == value.size())
    return not_supported("--ext-mount-map " + value, "KEY:VALUE is, for each mount");
  options.external_mounts[value.substr(0, colon)] = value.substr(colon + 1);
  return {};
}

Result<void> add_external_option(Options& options, const std::string& value) { return add_external(value, options); }

constexpr const char* kAlways = "ckpt always does that";
constexpr const char* kOneWay = "ckpt has one way to do it";
constexpr const char* kNoServer = "images are not sent over the network; copy the folder, or put it on a share";

/// In the order of criu's help.
constexpr std::array kKnown = {
    Known{"tree", 't', Value::kRequired, set_pid},
    Known{"restore-detached", 'd', Value::kNone, set_flag<&Options::detach>},
    Known{"restore-sibling", 'S', Value::kNone, set_flag<&Options::sibling>},
    Known{"leave-stopped", 's', Value::kNone, set_flag<&Options::leave_stopped>},
    Known{"leave-running", 'R', Value::kNone, set_flag<&Options::leave_running>},
    Known{"images-dir", 'D', Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> { return o.images_dir = v, Result<void>(); }},
    Known{"pidfile", 0, Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> { return o.pidfile = v, Result<void>(); }},
    Known{"work-dir", 'W', Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> { return o.work_dir = v, Result<void>(); }},
    Known{"cpu-cap", 0, Value::kOptional, set_cpu_cap},
    Known{"exec-cmd", 0, Value::kNone, nullptr, "the command is behind --"},
    Known{"freeze-cgroup", 0, Value::kRequired, nullptr, "ckpt stops processes by ptrace, not by their group"},
    Known{"weak-sysctls", 0, Value::kNone, nullptr, "no sysctl makes a restore fail"},
    Known{"lazy-pages", 0, Value::kNone, nullptr, "ckpt restore --lazy brings its own lazy-pages daemon", true},
    Known{"stream", 0, Value::kNone, nullptr, kNoServer, true},
    Known{"mntns-compat-mode", 0, Value::kNone, nullptr, kOneWay},
    Known{"network-lock", 0, Value::kRequired, set_network_lock},
    Known{"external", 0, Value::kRequired, add_external_option},
    Known{"tcp-established", 0, Value::kNone, set_flag<&Options::tcp_established>},
    Known{"skip-in-flight", 0, Value::kNone, nullptr, kAlways},
    Known{"tcp-close", 0, Value::kNone, set_flag<&Options::tcp_close>},
    Known{"root", 'r', Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> { return o.root = v, Result<void>(); }},
    Known{"evasive-devices", 0, Value::kNone, nullptr, "a device is opened by its path, or refused"},
    Known{"link-remap", 0, Value::kNone, nullptr, "no link is made: the content of deleted files goes with the image"},
    Known{"ghost-limit", 0, Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> {
            CKPT_TRY_ASSIGN(o.ghost_limit, size(v, "--ghost-limit"));
            return {};
          }},
    Known{"action-script", 0, Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> {
            o.action_scripts.push_back(v);
            return {};
          }},
    Known{"shell-job", 'j', Value::kNone, set_flag<&Options::shell_job>},
    Known{"file-locks", 'l', Value::kNone, nullptr, kAlways},
    Known{"libdir", 'L', Value::kRequired, nullptr, "ckpt has no plugins: it takes GPU state by itself"},
    Known{"timeout", 0, Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> {
            CKPT_TRY_ASSIGN(const int seconds, small_number(v, "--timeout"));
            constexpr int kNoLimit = 1'000'000;  // what 0 means
            o.timeout_s = seconds == 0 ? kNoLimit : seconds;
            return {};
          }},
    Known{"force-irmap", 0, Value::kNone, nullptr, "ckpt finds the files of watches by their handles"},
    Known{"irmap-scan-path", 0, Value::kRequired, nullptr, "ckpt finds the files of watches by their handles"},
    Known{"manage-cgroups", 0, Value::kOptional,
          [](Options& o, const std::string& v) -> Result<void> {
            CKPT_TRY_ASSIGN(o.cgroups, parse_cgroups(v));
            return {};
          }},
    Known{"cgroup-root", 0, Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> {
            CKPT_TRY_ASSIGN(CgroupRoot root, parse_cgroup_root(v));
            o.cgroup_roots.push_back(std::move(root));
            return {};
          }},
    Known{"cgroup-props", 0, Value::kRequired, nullptr, "limits of control groups are not restored", true},
    Known{"cgroup-props-file", 0, Value::kRequired, nullptr, "limits of control groups are not restored", true},
    Known{"cgroup-dump-controller", 0, Value::kRequired, nullptr, "limits of control groups are not restored", true},
    Known{"cgroup-yard", 0, Value::kRequired, nullptr, "groups are found where they are mounted", true},
    Known{"lsm-profile", 0, Value::kRequired, nullptr, nullptr, true},
    Known{"lsm-mount-context", 0, Value::kRequired, nullptr, nullptr, true},
    Known{"skip-mnt", 0, Value::kRequired, nullptr, nullptr, true},
    Known{"enable-fs", 0, Value::kRequired, nullptr, nullptr, true},
    Known{"inherit-fd", 0, Value::kRequired, set_inherited},
    Known{"empty-ns", 0, Value::kRequired, set_empty},
    Known{"join-ns", 'J', Value::kRequired, set_joined},
    Known{"file-validation", 0, Value::kRequired, nullptr, "files are compared by size and time, as ckpt restore does"},
    Known{"ext-unix-sk", 'x', Value::kOptional, set_unix},
    Known{"ext-mount-map", 'M', Value::kRequired, set_mount},
    Known{"enable-external-sharing", 0, Value::kNone, nullptr, nullptr, true},
    Known{"enable-external-masters", 0, Value::kNone, nullptr, nullptr, true},
    Known{"veth-pair", 0, Value::kRequired, set_veth},
    Known{"extra", 0, Value::kNone, nullptr, "check tells of every feature that counts"},
    Known{"experimental", 0, Value::kNone, nullptr, "check tells of every feature that counts"},
    Known{"all", 0, Value::kNone, nullptr, "check tells of every feature that counts"},
    Known{"feature", 0, Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> { return o.feature = v, Result<void>(); }},
    Known{"log-file", 'o', Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> { return o.log_file = v, Result<void>(); }},
    Known{"log-pid", 0, Value::kNone, nullptr, "one log has it all"},
    Known{"verbosity", 'v', Value::kOptional, set_level},
    Known{"display-stats", 0, Value::kNone, set_flag<&Options::display_stats>},
    Known{"track-mem", 0, Value::kNone, nullptr, kAlways},
    Known{"prev-images-dir", 0, Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> { return o.prev = v, Result<void>(); }},
    Known{"page-server", 0, Value::kNone, nullptr, kNoServer, true},
    Known{"auto-dedup", 0, Value::kNone, nullptr, "what a parent holds is never stored again"},
    Known{"pre-dump-mode", 0, Value::kRequired, nullptr, kOneWay},
    Known{"address", 0, Value::kRequired, nullptr, kNoServer, true},
    Known{"port", 0, Value::kRequired, nullptr, kNoServer, true},
    Known{"ps-socket", 0, Value::kRequired, nullptr, kNoServer, true},
    Known{"daemon", 0, Value::kNone, nullptr, kNoServer, true},
    Known{"status-fd", 0, Value::kRequired,
          [](Options& o, const std::string& v) -> Result<void> {
            CKPT_TRY_ASSIGN(o.status_fd, small_number(v, "--status-fd"));
            return {};
          }},
    Known{"tls", 0, Value::kNone, nullptr, kNoServer, true},
    Known{"unprivileged", 0, Value::kNone, nullptr, "ckpt says which privilege it lacks"},
    Known{"deprecated", 0, Value::kNone, nullptr, kOneWay},
    Known{"ghost-fiemap", 0, Value::kNone, nullptr, kAlways},
    Known{"allow-uprobes", 0, Value::kNone, nullptr, nullptr, true},
};

const Known* find(const std::string& name) {
  for (const Known& known : kKnown) {
    if (name == known.name) return &known;
  }
  return nullptr;
}

Result<void> apply(const Known& known, const std::string& value, Options& options) {
  if (known.refused) return not_supported(std::string("--") + known.name, known.why == nullptr ? "" : known.why);
  return known.apply == nullptr ? Result<void>() : known.apply(options, value);
}

/// Numbers of long options for getopt_long: the row of the table, above all letters.
constexpr int kFirstRow = 1000, kNoConfig = 1, kConfig = 2, kHelp = 'h', kVersion = 'V';

struct Configs {
  bool defaults = true;
  std::string file;
};

/// Each occurrence of an option is given to `act`.
Result<std::vector<std::string>> walk(const std::vector<std::string>& words, Configs& configs, std::string& instead,
                                      const std::function<Result<void>(const Known&, const std::string&)>& act) {
  std::string letters = ":hV";
  std::vector<option> longs = {{"no-default-config", no_argument, nullptr, kNoConfig},
                               {"config", required_argument, nullptr, kConfig},
                               {"help", no_argument, nullptr, kHelp},
                               {"version", no_argument, nullptr, kVersion}};
  for (size_t i = 0; i < kKnown.size(); ++i) {
    const Known& known = kKnown[i];
    const int argument = known.value == Value::kNone       ? no_argument
                         : known.value == Value::kRequired ? required_argument
                                                           : optional_argument;
    longs.push_back({known.name, argument, nullptr, kFirstRow + static_cast<int>(i)});
    if (known.letter != 0) letters += known.letter + std::string(static_cast<size_t>(argument), ':');
  }
  longs.push_back({nullptr, 0, nullptr, 0});
  std::vector<char*> arguments = {const_cast<char*>("criu")};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int count = static_cast<int>(arguments.size()) - 1;
  ::optind = 0;  // from the beginning, also a second time
  ::opterr = 0;
  for (;;) {
    const int at = ::optind == 0 ? 1 : ::optind;
    const int got = ::getopt_long(count, arguments.data(), letters.c_str(), longs.data(), nullptr);
    if (got < 0) break;
    const std::string value = ::optarg == nullptr ? "" : ::optarg;
    const std::string word = at < count ? arguments[static_cast<size_t>(at)] : "";
    if (got == '?') return fail(Code::kUsage, word, "is no option of criu's");
    if (got == ':') return fail(Code::kUsage, word, "wants a value");
    if (got == kHelp)
      instead = "help";
    else if (got == kVersion)
      instead = "version";
    else if (got == kNoConfig)
      configs.defaults = false;
    else if (got == kConfig)
      configs.file = value;
    else if (got >= kFirstRow)
      CKPT_TRY(act(kKnown[static_cast<size_t>(got - kFirstRow)], value));
    for (const Known& known : kKnown) {
      if (got == known.letter && known.letter != 0) CKPT_TRY(act(known, value));
    }
  }
  std::vector<std::string> rest;
  for (int i = ::optind; i < count; ++i) rest.emplace_back(arguments[static_cast<size_t>(i)]);
  return rest;
}

/// One line of a configuration file: an option without its dashes, its value behind blanks or in quotes. # begins a
/// comment.
Result<void> apply_line(const std::string& text, const std::string& where, Options& options) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos || text[begin] == '#') return {};
  const size_t end = std::min(text.find_first_of(" \t\r#", begin), text.size());
  const std::string name = text.substr(begin, end - begin);
  const Known* known = find(name);
  if (known == nullptr) return fail(Code::kUsage, where, fmt::format("'{}' is no option of criu's", name));
  std::string value;
  const size_t first = text.find_first_not_of(" \t\r", end);
  if (first != std::string::npos && text[first] != '#') {
    const bool quoted = text[first] == '"' || text[first] == '\'';
    const size_t from = quoted ? first + 1 : first;
    const size_t to = quoted ? text.find(text[first], from) : text.find_first_of(" \t\r#", from);
    if (quoted && to == std::string::npos) return fail(Code::kUsage, where, "a quote is not closed");
    value = text.substr(from, to == std::string::npos ? to : to - from);
  }
  if (known->value == Value::kNone && !value.empty())
    return fail(Code::kUsage, where, fmt::format("'{}' has no value", name));
  if (known->value == Value::kRequired && value.empty())
    return fail(Code::kUsage, where, fmt::format("'{}' wants a value", name));
  auto applied = apply(*known, value, options);
  if (!applied) return std::move(applied.error()).with_cause("asked for by " + where);
  return {};
}

/// Those that criu reads before its command line.
Result<void> apply_default_configs(const Configs& configs, Options& options) {
  std::vector<fs::path> files;
  if (configs.defaults) {
    files.emplace_back("/etc/criu/default.conf");
    if (const char* home = std::getenv("HOME")) files.push_back(fs::path(home) / ".criu/default.conf");
  }
  if (const char* named = std::getenv("CRIU_CONFIG_FILE")) files.emplace_back(named);
  for (const fs::path& file : files) CKPT_TRY(apply_config(file, options));
  if (configs.file.empty()) return {};
  std::error_code ec;
  if (!fs::exists(configs.file, ec)) return fail(Code::kNotFound, configs.file, "there is no such configuration file");
  return apply_config(configs.file, options);
}

/// Those that criu has and ckpt, in its place, has not.
Result<void> check_command(const std::string& command) {
  for (const char* known : {"dump", "pre-dump", "restore", "check", "dedup", "swrk"}) {
    if (command == known) return {};
  }
  if (command == "lazy-pages") return not_supported("criu lazy-pages", "ckpt restore --lazy brings its own daemon");
  for (const char* other : {"page-server", "service", "cpuinfo"}) {
    if (command == other) return not_supported(std::string("criu ") + other, command == "page-server" ? kNoServer : "");
  }
  return fail(Code::kUsage, command, "is no command of criu's");
}

}  // namespace

Error not_supported(const std::string& name, const std::string& why) {
  return Error(Code::kUnsupported, name, "is not supported by ckpt in criu's place").with_hint(why);
}

Result<void> apply_config(const fs::path& file, Options& options) {
  constexpr uint64_t kLimit = 1 << 20;
  std::error_code ec;
  if (!fs::exists(file, ec)) return {};
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(file, kLimit));
  int line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    CKPT_TRY(apply_line(text.substr(at, end - at), fmt::format("{}:{}", file.string(), ++line), options));
    at = end + 1;
  }
  return {};
}

Result<CgroupRoot> parse_cgroup_root(const std::string& text) {
  CgroupRoot out;
  const size_t colon = text[0] == '/' ? std::string::npos : text.find(":/");
  out.every = colon == std::string::npos;
  out.controllers = out.every ? "" : text.substr(0, colon);
  out.path = out.every ? text : text.substr(colon + 1);
  if (out.path.empty() || out.path[0] != '/')
    return fail(Code::kUsage, "--cgroup-root " + text, "is not of the form [CONTROLLER:]/GROUP");
  return out;
}

Result<void> inherit(const std::string& key, int fd, Options& options) {
  std::string name = key;
  if (name.starts_with("pipe[")) name.insert(4, ":");
  const int kind = ::ioctl(fd, NS_GET_NSTYPE);
  for (const NamespaceKind& known : kNamespaceKinds) {
    if (kind == known.flag) return options.joined[known.name] = fmt::format("/proc/self/fd/{}", fd), Result<void>();
  }
  if (!name.starts_with("pipe:[")) {
    return not_supported("--inherit-fd " + key,
                         "only pipes and namespaces are taken from the caller; all else comes from the image");
  }
  // Above the standard streams, which lead elsewhere while ckpt works.
  constexpr int kAbove = 10;
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, kAbove);
  if (copy < 0) return sys_error(fmt::format("--inherit-fd fd[{}]", fd), "cannot be used for " + key);
  options.inherited[name] = copy;
  return {};
}

Result<void> add_external(const std::string& text, Options& options) {
  const size_t open = text.find('['), close = text.find(']');
  const std::string kind = text.substr(0, open);
  const bool is_pair = open != std::string::npos && close != std::string::npos && close > open;
  const std::string key = is_pair ? text.substr(open + 1, close - open - 1) : "";
  const std::string value = is_pair && text.size() > close + 1 && text[close + 1] == ':' ? text.substr(close + 2) : "";
  if (kind == "mnt" && !key.empty() && !value.empty()) return options.external_mounts[key] = value, Result<void>();
  if (kind == "veth" && !key.empty() && !value.empty()) return set_veth(options, key + "=" + value);
  // They are given back by --inherit-fd.
  if ((kind == "net" || kind == "pid") && !key.empty() && !value.empty()) {
    if (kind == "net") options.external_network = true;
    return {};
  }
  return not_supported("--external " + text,
                       "mnt[KEY]:VALUE, veth[INSIDE]:OUTSIDE[@BRIDGE], net[INODE]:KEY and pid[INODE]:KEY are");
}

Result<Cgroups> parse_cgroups(const std::string& mode) {
  if (mode.empty() || mode == "soft") return Cgroups::kMembership;
  if (mode == "ignore" || mode == "none") return Cgroups::kLeave;
  if (mode == "props" || mode == "full" || mode == "strict")
    return not_supported("--manage-cgroups=" + mode, "soft puts the processes back into their groups, without limits");
  return fail(Code::kUsage, "--manage-cgroups=" + mode, "is none of ignore, none, props, soft, full, strict");
}

Result<CommandLine> parse_command_line(const std::vector<std::string>& words) {
  std::vector<std::string> own = words, command;
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] != "--") continue;
    command.assign(own.begin() + static_cast<ptrdiff_t>(i) + 1, own.end());
    own.resize(i);
  }
  CommandLine out;
  Configs configs;
  std::string instead;
  std::vector<std::pair<const Known*, std::string>> given;
  auto note = [&](const Known& known, const std::string& value) -> Result<void> {
    return given.emplace_back(&known, value), Result<void>();
  };
  CKPT_TRY_ASSIGN(std::vector<std::string> rest, walk(own, configs, instead, note));
  if (!instead.empty()) return out.command = instead, out;
  if (rest.empty()) return Error(Code::kUsage, "", "a command is required").with_hint("criu --help lists them");
  out.command = rest[0];
  CKPT_TRY(check_command(out.command));
  const size_t arguments = out.command == "swrk" ? 2 : 1;
  if (rest.size() > arguments) return fail(Code::kUsage, rest[arguments], "is one argument too many");
  if (out.command == "swrk") {
    if (rest.size() < 2) return fail(Code::kUsage, "swrk", "wants the number of a descriptor");
    CKPT_TRY_ASSIGN(out.socket, small_number(rest[1], "swrk"));
  }
  CKPT_TRY(apply_default_configs(configs, out.options));
  bool has_command = false;
  for (const auto& [known, value] : given) {
    CKPT_TRY(apply(*known, value, out.options));
    has_command = has_command || known->name == std::string("exec-cmd");
  }
  if (has_command != !command.empty())
    return fail(Code::kUsage, "--exec-cmd", "goes with a command behind --, and only that");
  out.options.exec_command = std::move(command);
  if ((out.command == "dump" || out.command == "pre-dump") && out.options.pid == 0)
    return fail(Code::kUsage, out.command, "wants --tree PID");
  if (out.options.sibling && !out.options.detach)
    return fail(Code::kUsage, "--restore-sibling", "goes with --restore-detached");
  return out;
}

std::string help_text() {
  std::string out =
      "Usage: criu dump|pre-dump -t PID -D DIR [OPTION]...\n"
      "       criu restore -D DIR [OPTION]...\n"
      "       criu check [--feature FEATURE]\n"
      "       criu dedup -D DIR\n"
      "       criu swrk FD\n"
      "This is ckpt in criu's place: man ckpt-criu\n\nOptions that do what they do in criu:\n";
  std::string ignored, refused;
  for (const Known& known : kKnown) {
    const std::string letter = known.letter == 0 ? "    " : fmt::format("-{}, ", known.letter);
    const std::string line = fmt::format("  {}--{}", letter, known.name);
    if (known.apply != nullptr)
      out += line + "\n";
    else if (known.refused)
      refused += line + "\n";
    else
      ignored += fmt::format("{:<32}{}\n", line, known.why);
  }
  return out + "\nAccepted, and of no effect:\n" + ignored + "\nRefused:\n" + refused;
}

}  // namespace ckpt::cli::criu
