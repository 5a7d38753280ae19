// A thread is called what it was by what it writes about itself, where the module's policy lets ckpt do that.
// aa_change_profile(2) of AppArmor and setcon(3) of SELinux do the same.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/state/labels/record.h"
#include "lib/state/tree/child.h"
#include "lib/store/image.h"

namespace ckpt::restore {

struct LabelChange {
  std::string file;   ///< of /proc/thread-self/attr
  std::string text;   ///< that is written there: AppArmor's "changeprofile NAME", SELinux's context
  std::string label;  ///< that is read there then, as capture::parse_label has it, or a profile's name without its mode
  /// SELinux: only of a process of one thread; those that it makes have the label, too.
  bool before_threads = false;
  bool operator==(const LabelChange&) const = default;
};

/// By thread id: of those whose label is to be another one than ckpt's.
using LabelChanges = std::map<int, LabelChange>;

/// That of a file of /proc/PID/attr; empty: there is none.
std::string label_in(const std::vector<store::SecurityLabel>& labels, const std::string& file);
/// Whether the file tells what the thread itself is called, and not what it makes.
bool is_of_thread(const std::string& file);
/// AppArmor's labels end with a mode: "docker-default (enforce)".
bool has_mode(const std::string& label);
std::string without_mode(const std::string& label);

/// What makes `was` of `own`, which are not the same. Nothing: it cannot be written (labels of what a thread makes,
/// those of Smack).
std::optional<LabelChange> change_between(const std::vector<store::SecurityLabel>& own,
                                          const std::vector<store::SecurityLabel>& was);
/// What makes `profile` of whatever there is, for a thread that had a label: "apparmor:NAME", "selinux:CONTEXT".
std::optional<LabelChange> change_to(const std::string& profile, const std::vector<store::SecurityLabel>& was);
/// kUsage: of another form than those.
Result<void> check_profile(const std::string& profile);

bool gives(const LabelChange& change, const std::vector<store::SecurityLabel>& labels);
/// By a process of ckpt's own, which ends at once. kPermission: the kernel does not let ckpt.
Result<void> try_change(const LabelChange& change);

/// In the threads that have one to make now; in the leader, where it is to be `before_threads`. kPermission.
Result<void> change_labels(const store::ProcessImage& image, const LabelChanges& changes, bool before_threads,
                           Child& child);

}  // namespace ckpt::restore
