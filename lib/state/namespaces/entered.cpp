#include "lib/state/namespaces/entered.h"

#include <optional>

namespace ckpt::state {

namespace {

std::optional<Entered> g_entered;

}  // namespace

void set_entered(Entered entered) { g_entered = std::move(entered); }
bool stays_as_sibling() { return g_entered && !g_entered->init_is_ckpts; }
const Entered* entered() { return g_entered ? &*g_entered : nullptr; }

}  // namespace ckpt::state
