#include "lib/state/network/options.h"

#include "lib/state/network/links.h"

namespace ckpt::state {

Result<std::map<std::string, VethEnd>> parse_veths(const std::vector<std::string>& texts) {
  std::map<std::string, VethEnd> out;
  for (const std::string& text : texts) {
    const size_t equal = text.find('='), at = text.find('@', equal == std::string::npos ? 0 : equal);
    const std::string inside = text.substr(0, equal);
    VethEnd end;
    if (equal != std::string::npos) end.name = text.substr(equal + 1, at == std::string::npos ? at : at - equal - 1);
    if (at != std::string::npos) end.bridge = text.substr(at + 1);
    const bool good = is_link_name(inside) && is_link_name(end.name) &&
                      (at == std::string::npos ? end.bridge.empty() : is_link_name(end.bridge));
    if (!good) return fail(Code::kUsage, "--veth " + text, "is not of the form INSIDE=OUTSIDE[@BRIDGE]");
    if (!out.emplace(inside, std::move(end)).second)
      return fail(Code::kUsage, "--veth " + text, "names what another --veth names, too");
  }
  return out;
}

}  // namespace ckpt::state
