// Values of options and of fields of requests that name something outside of the image.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "cli/criu/options.h"

namespace ckpt::cli::criu {

namespace {

struct NamespaceKind {
  const char* name;
  int flag;
};
constexpr NamespaceKind kNamespaceKinds[] = {
    {"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC}, {"uts", CLONE_NEWUTS}, {"mnt", CLONE_NEWNS}, {"pid", CLONE_NEWPID}};

}  // namespace

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
  if (kind == "veth" && !key.empty() && !value.empty()) return add_veth(key + "=" + value, options);
  // They are given back by --inherit-fd.
  if ((kind == "net" || kind == "pid") && !key.empty() && !value.empty()) {
    if (kind == "net") options.external_network = true;
    return {};
  }
  return not_supported("--external " + text,
                       "mnt[KEY]:VALUE, veth[INSIDE]:OUTSIDE[@BRIDGE], net[INODE]:KEY and pid[INODE]:KEY are");
}

Result<void> add_veth(const std::string& text, Options& options) {
  CKPT_TRY_ASSIGN(const auto ends, state::parse_veths({text}));
  for (const auto& [inside, end] : ends) options.veths[inside] = end;
  return {};
}

Result<Cgroups> parse_cgroups(const std::string& mode) {
  if (mode.empty() || mode == "soft") return Cgroups::kMembership;
  if (mode == "ignore" || mode == "none") return Cgroups::kLeave;
  if (mode == "props" || mode == "full" || mode == "strict")
    return not_supported("--manage-cgroups=" + mode, "soft puts the processes back into their groups, without limits");
  return fail(Code::kUsage, "--manage-cgroups=" + mode, "is none of ignore, none, props, soft, full, strict");
}

}  // namespace ckpt::cli::criu
