#include "lib/engine/owner_rights.h"

#include <fmt/format.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "lib/base/linkage.h"
#include "lib/store/image.h"

namespace ckpt::engine {

namespace {

std::vector<gid_t> groups_of(const passwd& user) {
  int count = 64;
  std::vector<gid_t> out(static_cast<size_t>(count));
  while (::getgrouplist(user.pw_name, user.pw_gid, out.data(), &count) < 0) out.resize(static_cast<size_t>(count));
  out.resize(static_cast<size_t>(count));
  return out;
}

/// Those of the image's first process, which cannot be changed later, as far as the user is in them.
Result<void> take_groups(const passwd& user, const store::Thread& thread) {
  const std::vector<gid_t> all = groups_of(user);
  std::vector<gid_t> some;
  auto has = [&](gid_t group) { return std::find(all.begin(), all.end(), group) != all.end(); };
  std::copy_if(thread.groups.begin(), thread.groups.end(), std::back_inserter(some), has);
  const gid_t group = has(thread.gid[0]) ? thread.gid[0] : user.pw_gid;
  if (::setgroups(some.size(), some.data()) != 0 || ::setresgid(group, group, group) != 0)
    return sys_error(user.pw_name, "cannot take the groups of this user");
  return {};
}

Result<void> take_user(const passwd& user) {
  if (::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 || ::setresuid(user.pw_uid, user.pw_uid, user.pw_uid) != 0) {
    return sys_error(user.pw_name, "cannot take the rights of this user");
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  data[CAP_TO_INDEX(CAP_CHECKPOINT_RESTORE)].permitted = CAP_TO_MASK(CAP_CHECKPOINT_RESTORE);
  data[CAP_TO_INDEX(CAP_CHECKPOINT_RESTORE)].effective = CAP_TO_MASK(CAP_CHECKPOINT_RESTORE);
  if (::syscall(SYS_capset, &header, data) != 0) return sys_error(user.pw_name, "cannot give up root's capabilities");
  // As the processes' own secure bits are, which it could not change.
  if (::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) != 0) return sys_error(user.pw_name, "cannot give up root's capabilities");
  // Its own folder in /proc belongs to it again. The user cannot trace it: it has a capability that he lacks.
  if (::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) return sys_error(user.pw_name, "cannot take the rights of this user");
  // Root's keys are at the hand of whatever has its session keyring. Where there are no keyrings, or no leave to join
  // one, the processes have none.
  (void)::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr);
  return {};
}

}  // namespace

Result<void> refuse_what_is_roots(const store::TreeImage& tree, const std::filesystem::path& image) {
  for (const store::ProcessImage& process : tree.processes) {
    if (process.session == 0 ||
        (process.outside_session && (process.terminal != 0 || process.session == ::getsid(0)))) {
      return Error(Code::kPermission, image.string(),
                   fmt::format("belongs to another user, and process {} would be of root's session and terminal",
                               process.pid))
          .with_hint("--trust gives it every right that it asks for (ckpt-security(7))");
    }
    for (const store::Thread& thread : process.threads) {
      if ((thread.cap_inheritable | thread.cap_permitted | thread.cap_effective | thread.cap_ambient) == 0) continue;
      return Error(Code::kPermission, image.string(),
                   fmt::format("belongs to another user, who has no capabilities to give, and thread {} asks for some",
                               thread.tid))
          .with_hint("--trust gives it every right that it asks for (ckpt-security(7))");
    }
  }
  return {};
}

Result<std::optional<std::string>> take_rights_of_owner(const std::filesystem::path& image) {
  struct stat st {};
  // That it cannot be looked at is told by whoever opens it.
  if (::geteuid() != 0 || ::stat(image.c_str(), &st) != 0 || st.st_uid == 0) return std::optional<std::string>();
  const passwd* user = ::getpwuid(st.st_uid);
  if (user == nullptr) {
    const char* where = linked_statically() ? "/etc/passwd, which a statically linked ckpt keeps to," : "this system";
    return Error(Code::kUnsupported, image.string(),
                 fmt::format("belongs to user {}, whose groups {} does not know", st.st_uid, where))
        .with_hint("--trust takes it all the same, with every right that it asks for (ckpt-security(7))");
  }
  CKPT_TRY_ASSIGN(store::Manifest manifest, store::read_manifest(image));
  CKPT_TRY(refuse_what_is_roots(manifest.tree, image));
  CKPT_TRY(take_groups(*user, manifest.tree.root().threads[0]));
  CKPT_TRY(take_user(*user));
  return std::optional<std::string>(user->pw_name);
}

}  // namespace ckpt::engine
