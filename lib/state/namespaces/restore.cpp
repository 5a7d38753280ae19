#include "lib/state/namespaces/restore.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "lib/base/unique_fd.h"

namespace ckpt::restore {

namespace {

Result<void> set_names(const store::Namespaces& namespaces) {
  if (::sethostname(namespaces.hostname.data(), namespaces.hostname.size()) != 0)
    return sys_error(namespaces.hostname, "cannot be made the hostname");
  if (::setdomainname(namespaces.domainname.data(), namespaces.domainname.size()) != 0)
    return sys_error(namespaces.domainname, "cannot be made the domain name");
  return {};
}

}  // namespace

Result<void> check_namespaces(const store::Namespaces&, bool mounts, bool network) {
  if (!mounts && !network) return {};
  return Error(Code::kUnsupported, "the image", "is of a tree in a mount or network namespace of its own")
      .with_hint("--into PID restores it into those of a running process");
}

Result<void> fill_namespaces(const store::Namespaces& namespaces, const std::map<std::string, bool>& make) {
  if (make.count("uts") != 0) CKPT_TRY(set_names(namespaces));
  return {};
}

Result<void> make_mounts(const store::Namespaces&, const std::string&, const std::map<std::string, std::string>&) {
  return {};
}

}  // namespace ckpt::restore
