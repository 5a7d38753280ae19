#include "lib/state/namespaces/restore.h"

#include <fcntl.h>
#include <unistd.h>

#include "lib/base/io.h"
#include "lib/base/unique_fd.h"
#include "lib/state/namespaces/loopback.h"

namespace ckpt::restore {

namespace {

Result<void> set_names(const store::Namespaces& namespaces) {
  if (::sethostname(namespaces.hostname.data(), namespaces.hostname.size()) != 0)
    return sys_error(namespaces.hostname, "cannot be made the hostname");
  if (::setdomainname(namespaces.domainname.data(), namespaces.domainname.size()) != 0)
    return sys_error(namespaces.domainname, "cannot be made the domain name");
  return {};
}

Result<void> set_up_network(const store::Network& network) {
  if (network.loopback_up) CKPT_TRY(state::raise_loopback());
  for (const store::NetworkSetting& setting : network.settings) {
    const std::string path = "/proc/sys/" + setting.path;
    if (setting.path.rfind("net/", 0) != 0 || ("/" + setting.path + "/").find("/../") != std::string::npos)
      return fail(Code::kCorrupt, setting.path, "is no setting of a network namespace");
    CKPT_TRY_ASSIGN(UniqueFd file, io::open_file(path, O_WRONLY));
    CKPT_TRY(io::write_all(file.get(), as_bytes(setting.value), path));
  }
  return {};
}

}  // namespace

Result<void> check_namespaces(const store::Namespaces& namespaces, bool network) {
  Error error(Code::kUnsupported, "the image", "is of processes in namespaces that cannot be made again yet");
  for (const std::string& thing : network ? namespaces.network.beyond : std::vector<std::string>())
    error.causes.push_back("a network namespace with " + thing);
  if (error.causes.empty()) return {};
  return std::move(error).with_hint("--into PID restores it into those of a running process");
}

Result<void> fill_namespaces(const store::Namespaces& namespaces, const std::map<std::string, bool>& make) {
  if (make.count("uts") != 0) CKPT_TRY(set_names(namespaces));
  if (make.count("net") != 0) CKPT_TRY(set_up_network(namespaces.network));
  return {};
}

}  // namespace ckpt::restore
