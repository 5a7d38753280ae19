#include "lib/state/external/capture.h"

namespace ckpt::capture {

Result<bool> take_external(DescriptorContext& context, const Place& place, std::string name, const std::string& what,
                           store::Descriptor& d) {
  if (!context.walk.options.shell_job) return context.block(place, what, "--shell-job"), false;
  d.kind = store::DescriptorKind::kExternal;
  d.external = std::move(name);
  return true;
}

}  // namespace ckpt::capture
