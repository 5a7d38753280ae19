#include "cli/criu/option_table.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>

#include "lib/state/labels/change.h"

namespace ckpt::cli::criu {

namespace {

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
Result<void> set_veth(Options& options, const std::string& value) { return add_veth(value, options); }

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

Result<void> set_label_profile(Options& options, const std::string& value) {
  CKPT_TRY(restore::check_profile(value));
  options.label_profile = value;
  return {};
}

constexpr const char* kAlways = "ckpt always does that";
constexpr const char* kOneWay = "ckpt has one way to do it";

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
    Known{"lsm-profile", 0, Value::kRequired, set_label_profile},
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

}  // namespace

std::span<const Known> known_options() { return kKnown; }

Result<int> small_number(const std::string& text, const char* option) {
  CKPT_TRY_ASSIGN(const int64_t value, number(text, option));
  if (value > 1 << 30) return fail(Code::kUsage, option, fmt::format("'{}' is too large", text));
  return static_cast<int>(value);
}

const Known* find_option(const std::string& name) {
  for (const Known& known : kKnown) {
    if (name == known.name) return &known;
  }
  return nullptr;
}

Result<void> apply(const Known& known, const std::string& value, Options& options) {
  if (known.refused) return not_supported(std::string("--") + known.name, known.why == nullptr ? "" : known.why);
  return known.apply == nullptr ? Result<void>() : known.apply(options, value);
}

}  // namespace ckpt::cli::criu
