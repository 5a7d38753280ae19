#include "cli/criu/request_options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <sched.h>

#include "lib/base/io.h"
#include "lib/state/labels/change.h"

namespace ckpt::cli::criu {

namespace {

std::string of_peer(pid_t peer, int fd) { return fmt::format("/proc/{}/fd/{}", peer, fd); }

struct Refusal {
  bool asked;
  const char* field;
  const char* why;
};

Result<void> refuse(const criu_rpc::Options& request) {
  constexpr const char* kNoServer = "images are not sent over the network";
  constexpr const char* kNoLimits = "limits of control groups are not restored";
  const Refusal refusals[] = {
      {request.lazy_pages(), "lazy_pages", "ckpt restore --lazy brings its own lazy-pages daemon"},
      {request.has_ps(), "ps (a page server)", kNoServer},
      {request.tls(), "tls", kNoServer},
      {request.auto_ext_mnt(), "auto_ext_mnt", ""},
      {request.ext_sharing(), "ext_sharing", ""},
      {request.ext_masters(), "ext_masters", ""},
      {!request.skip_mnt().empty(), "skip_mnt", ""},
      {!request.enable_fs().empty(), "enable_fs", ""},
      {!request.unix_sk_ino().empty(), "unix_sk_ino", "ext_unix_sk without a list means all of them"},
      {(request.empty_ns() & ~static_cast<unsigned>(CLONE_NEWNET)) != 0, "empty_ns", "only of the network"},
      {!request.cgroup_props().empty(), "cgroup_props", kNoLimits},
      {!request.cgroup_props_file().empty(), "cgroup_props_file", kNoLimits},
      {!request.cgroup_dump_controller().empty(), "cgroup_dump_controller", kNoLimits},
      {!request.cgroup_yard().empty(), "cgroup_yard", "groups are found where they are mounted"},
      {!request.lsm_mount_context().empty(), "lsm_mount_context", ""},
      {request.has_cpu_cap() && request.cpu_cap() == 0, "cpu_cap 0", "a restore checks the processor's abilities"},
      {request.network_lock() > 2, "network_lock", "connections are held off by nftables"},
  };
  for (const Refusal& refusal : refusals) {
    if (refusal.asked) return not_supported(fmt::format("the request's {}", refusal.field), refusal.why);
  }
  return check_known(request.unknown_fields(), "criu_opts");
}

Result<Cgroups> cgroups_of(const criu_rpc::Options& request) {
  if (!request.has_manage_cgroups_mode())
    return request.has_manage_cgroups() && !request.manage_cgroups() ? Cgroups::kLeave : Cgroups::kMembership;
  switch (request.manage_cgroups_mode()) {
    case criu_rpc::IGNORE:
    case criu_rpc::CG_NONE:
      return Cgroups::kLeave;
    case criu_rpc::SOFT:
    case criu_rpc::DEFAULT:
      return Cgroups::kMembership;
    case criu_rpc::PROPS:
      return parse_cgroups("props");
    case criu_rpc::FULL:
      return parse_cgroups("full");
    case criu_rpc::STRICT:
      return parse_cgroups("strict");
  }
  return fail(Code::kUsage, "manage_cgroups_mode", "is none of criu's");
}

/// Numbers of descriptors are this process's own; each must be there.
Result<void> take_inherited(const criu_rpc::Options& request, Options& options) {
  for (const criu_rpc::InheritedFd& given : request.inherit_fd()) {
    if (::fcntl(given.fd(), F_GETFD) < 0)
      return sys_error(fmt::format("inherit_fd {}", given.fd()), fmt::format("cannot be used for {}", given.key()));
    CKPT_TRY(inherit(given.key(), given.fd(), options));
  }
  return {};
}

Result<void> take_namespaces(const criu_rpc::Options& request, Options& options) {
  if (!request.root().empty()) options.root = request.root();
  if ((request.empty_ns() & CLONE_NEWNET) != 0) options.empty_network = true;
  for (const criu_rpc::VethPair& pair : request.veths())
    CKPT_TRY(add_external("veth[" + pair.if_in() + "]:" + pair.if_out(), options));
  for (const criu_rpc::ExternalMount& mount : request.ext_mnt()) options.external_mounts[mount.key()] = mount.val();
  for (const std::string& resource : request.external()) CKPT_TRY(add_external(resource, options));
  for (const criu_rpc::JoinedNamespace& one : request.join_ns()) {
    if (!one.extra_opt().empty()) return not_supported("the request's join_ns with extra_opt");
    options.joined[one.ns()] = one.ns_file();
  }
  return {};
}

}  // namespace

Result<void> check_known(const std::string& unknown_fields, const char* message) {
  if (unknown_fields.empty()) return {};
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(unknown_fields.data()),
                                            static_cast<int>(unknown_fields.size()));
  constexpr int kTypeBits = 3;
  return not_supported(fmt::format("field {} of {}", in.ReadTag() >> kTypeBits, message),
                       "it is of a criu that this ckpt does not know");
}

Result<void> take_folders(const criu_rpc::Options& request, pid_t peer, Options& options) {
  if (request.images_dir_fd() >= 0)
    options.images_dir = of_peer(peer, request.images_dir_fd());
  else if (!request.images_dir().empty())
    options.images_dir = request.images_dir();
  else
    return fail(Code::kUsage, "the request", "names no folder for the images (images_dir_fd)");
  if (request.has_work_dir_fd()) options.work_dir = of_peer(peer, request.work_dir_fd());
  if (request.log_file().find('/') != std::string::npos)
    return fail(Code::kUsage, "log_file " + request.log_file(), "is to be a name without folders");
  if (!request.log_file().empty())
    options.log_file = request.log_file();
  else if (request.log_to_stderr())
    options.log_file = "-";
  else if (options.log_file.empty())
    options.log_file = "criu.log";
  if (request.has_log_level()) options.log_level = request.log_level();
  return {};
}

Result<void> take_options(const criu_rpc::Options& request, pid_t peer, bool restores, Options& options) {
  CKPT_TRY(refuse(request));
  if (!restores && (!request.has_pid() || request.pid() <= 0 || request.pid() == peer))
    return not_supported("a request of a process that dumps itself", "let another process ask");
  options.pid = request.pid();
  auto set = [](bool& option, bool asked) { option = option || asked; };
  set(options.leave_running, request.leave_running());
  set(options.leave_stopped, request.leave_stopped());
  set(options.external_unix, request.ext_unix_sk());
  set(options.tcp_established, request.tcp_established());
  set(options.tcp_close, request.tcp_close());
  set(options.shell_job, request.shell_job());
  set(options.orphan_terminals, request.orphan_pts_master());
  set(options.sibling, request.rst_sibling());
  set(options.display_stats, request.display_stats());
  if (!request.parent_img().empty()) options.prev = request.parent_img();
  if (request.has_ghost_limit()) options.ghost_limit = request.ghost_limit();
  if (request.has_timeout() && request.timeout() != 0) options.timeout_s = request.timeout();
  options.detach = true;  // a service stands in for nobody
  options.exec_command.assign(request.exec_cmd().begin(), request.exec_cmd().end());
  CKPT_TRY_ASSIGN(const Cgroups cgroups, cgroups_of(request));
  if (request.has_manage_cgroups() || request.has_manage_cgroups_mode()) options.cgroups = cgroups;
  for (const criu_rpc::CgroupRoot& root : request.cg_root())
    options.cgroup_roots.push_back({root.ctrl(), root.path(), !root.has_ctrl()});
  CKPT_TRY(take_inherited(request, options));
  if (!request.lsm_profile().empty()) {
    CKPT_TRY(restore::check_profile(request.lsm_profile()));
    options.label_profile = request.lsm_profile();
  }
  CKPT_TRY(take_namespaces(request, options));
  if (!request.has_status_fd()) return {};
  CKPT_TRY_ASSIGN(UniqueFd status, io::open_file(of_peer(peer, request.status_fd()), O_WRONLY));
  options.status_fd = status.release();
  return {};
}

}  // namespace ckpt::cli::criu
