#include "lib/state/external/capture.h"

namespace ckpt::capture::external {

bool take_terminal(DescriptorContext& context, const Place& place, std::string name, const std::string& what,
                   store::Descriptor& d) {
  if (!context.walk.options.external.terminals) return context.block(place, what, "--shell-job"), false;
  d.kind = store::DescriptorKind::kExternal;
  d.external = std::move(name);
  return true;
}

bool take_pipe(DescriptorContext& context, const Place& place, std::string name, const std::string& what,
               store::Descriptor& d) {
  const state::ExternalPipes wanted = context.walk.options.external.pipes;
  if (wanted == state::ExternalPipes::kFail)
    return context.block(place, what, "--shell-job or --external-pipes null"), false;
  d.kind = store::DescriptorKind::kExternal;
  d.external = std::move(name);
  d.becomes_null = wanted == state::ExternalPipes::kNull;
  return true;
}

}  // namespace ckpt::capture::external
