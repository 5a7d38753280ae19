#include "cli/owner_rights.h"

#include <fmt/format.h>

#include "lib/base/text.h"
#include "lib/engine/owner_rights.h"

namespace ckpt::cli {

Result<void> take_owner_rights(engine::RestoreOptions& options,
                               const std::function<void(const std::string&)>& tell) {
  if (options.trust) return {};
  CKPT_TRY_ASSIGN(std::optional<std::string> owner, engine::take_rights_of_owner(options.image));
  if (!owner) return {};
  options.rights_of_owner = true;
  const std::string image = options.image.string();
  const bool keeps_pipes = options.external.pipes == state::ExternalPipes::kKeep;
  const std::string_view wants_root = options.external.terminals        ? "--shell-job"
                                      : keeps_pipes                     ? "--external-pipes keep"
                                      : !options.external.given.empty() ? "--inherit-fd"
                                      : !options.label_profile.empty()  ? "--lsm-profile"
                                      : options.new_pid_namespace       ? "--new-pidns"
                                      : options.placed                  ? "other namespaces"
                                                                        : "";
  if (!wants_root.empty()) {
    return Error(Code::kPermission, image,
                 fmt::format("belongs to another user, {}, to whose processes {} would give what is root's", *owner,
                             wants_root))
        .with_hint("ckpt restore --trust takes it all the same, with every right that it asks for (ckpt-security(7))");
  }
  tell(fmt::format(
      "{} belongs to another user: restored with the rights of {} only (--trust: with every right it asks for)",
      escape_for_terminal(image), *owner));
  return {};
}

}  // namespace ckpt::cli
