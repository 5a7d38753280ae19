// What security modules (SELinux, AppArmor, Smack) call a thread: what the manifest says of it.
#pragma once

#include <string>

namespace ckpt::store {

/// A file of /proc/PID/task/TID/attr that is not empty.
struct SecurityLabel {
  std::string name;   ///< "current", "exec", "apparmor/current"
  std::string value;  ///< without the zero or the newline at its end
  bool operator==(const SecurityLabel&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<SecurityLabel> l) {
  a.text("name", l.name);
  a.text("value", l.value);
}

}  // namespace ckpt::store
