#include "lib/state/labels/restore.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "lib/state/labels/capture.h"

namespace ckpt::restore {

namespace {

std::string quoted(const std::string& label) { return label.empty() ? "none" : "\"" + label + "\""; }

/// The command that starts a program under a label: of AppArmor by the profile's name, which the mode follows.
std::string starter_of(const store::SecurityLabel& label) {
  if (has_mode(label.value)) return fmt::format("aa-exec -p '{}' -- ckpt restore ...", without_mode(label.value));
  if (std::count(label.value.begin(), label.value.end(), ':') >= 2)
    return fmt::format("runcon '{}' ckpt restore ...", label.value);
  return "";
}

class LabelCheck {
 public:
  LabelCheck(const LabelRules& rules, Reasons& reasons) : rules_(rules), reasons_(reasons) {}

  void look_at(const store::ProcessImage& process) {
    told_.clear();
    for (const store::Thread& thread : process.threads) look_at(process, thread);
    auto change_of = [&](const store::Thread& thread) {
      const auto found = changes_.find(thread.tid);
      return found == changes_.end() ? nullptr : &found->second;
    };
    const LabelChange* first = change_of(process.threads[0]);
    bool inherited = false, differ = false;
    for (const store::Thread& thread : process.threads) {
      const LabelChange* change = change_of(thread);
      inherited = inherited || (change != nullptr && change->before_threads);
      differ = differ || change == nullptr || first == nullptr || *change != *first;
    }
    if (inherited && differ)
      reasons_.add(Code::kPermission, fmt::format("process {}: its threads had different security labels, which the "
                                                  "kernel gives to processes of one thread alone",
                                                  process.pid));
  }

  LabelChanges take() { return std::move(changes_); }

 private:
  void look_at(const store::ProcessImage& process, const store::Thread& thread) {
    std::optional<LabelChange> change;
    if (!rules_.profile.empty()) change = change_to(rules_.profile, thread.labels);
    const bool forced = change.has_value();
    if (!forced) change = change_between(rules_.own, thread.labels);
    std::string why_not;
    if (change && !gives(*change, rules_.own)) {
      why_not = try_once(*change);
      if (why_not.empty()) changes_.emplace(thread.tid, *change);
    }
    if (change && why_not.empty() && !forced) return;
    refuse_others(process, thread, forced, why_not);
    if (forced && !why_not.empty() && told_.emplace("", rules_.profile).second)
      reasons_.add(Code::kPermission, fmt::format("process {}: does not get the security label {}: {}",
                                                  process.pid, rules_.profile, why_not));
  }

  /// Empty: the kernel does it.
  std::string try_once(const LabelChange& change) {
    for (const auto& [known, answer] : tried_) {
      if (known == change) return answer;
    }
    auto done = rules_.try_change(change);
    return tried_.emplace_back(change, done ? std::string() : done.error().text()).second;
  }

  /// `forced`: what the thread itself is called is another matter.
  void refuse_others(const store::ProcessImage& process, const store::Thread& thread, bool forced,
                     const std::string& why_not) {
    std::set<std::string> names;
    for (const auto* labels : {&thread.labels, &rules_.own}) {
      for (const store::SecurityLabel& label : *labels) {
        if (!forced || !is_of_thread(label.name)) names.insert(label.name);
      }
    }
    for (const std::string& name : names) {
      const std::string was = label_in(thread.labels, name), is = label_in(rules_.own, name);
      if (was == is || !told_.emplace(name, was).second) continue;
      reasons_.add(Code::kPermission,
                   fmt::format("process {}: its security label (attr/{}) was {}, and would be ckpt's: {}{}",
                               process.pid, name, quoted(was), quoted(is),
                               why_not.empty() ? "" : ", for it is not changed: " + why_not));
      const std::string starter = name == "current" ? starter_of({name, was}) : "";
      reasons_.hint((starter.empty() ? "run ckpt restore under the label that it had"
                                     : fmt::format("run ckpt restore under the label that it had ({})", starter)) +
                    ", or give the label up: ckpt restore --drop-labels");
    }
  }

  const LabelRules& rules_;
  Reasons& reasons_;
  LabelChanges changes_;
  std::vector<std::pair<LabelChange, std::string>> tried_;
  std::set<std::pair<std::string, std::string>> told_;  ///< of one process
};

}  // namespace

bool records_labels(const store::TreeImage& tree) {
  return tree.labels_recorded ||
         std::any_of(tree.processes.begin(), tree.processes.end(), [](const store::ProcessImage& process) {
           return std::any_of(process.threads.begin(), process.threads.end(),
                              [](const store::Thread& thread) { return !thread.labels.empty(); });
         });
}

LabelChanges check_labels(const store::TreeImage& tree, const LabelRules& rules, Reasons& reasons) {
  if (!records_labels(tree)) return {};
  LabelCheck check(rules, reasons);
  for (const store::ProcessImage& process : tree.processes) {
    if (!process.zombie) check.look_at(process);
  }
  return check.take();
}

namespace {

Result<void> refuse_change(const LabelChange&) {
  return Error(Code::kPermission, "", "the image is another user's, whose rights tell nothing of labels");
}

}  // namespace

LabelChanges check_labels(const store::TreeImage& tree, const std::string& profile, bool may_change, Reasons& reasons,
                          ProgressSink& progress) {
  if (!records_labels(tree) && capture::tells_labels())
    progress.note("the image is an older ckpt's, which did not record security labels: processes get ckpt's own");
  auto own = capture::read_labels(::getpid(), ::getpid());
  if (own) return check_labels(tree, {std::move(*own), profile, may_change ? try_change : refuse_change}, reasons);
  reasons.add(own.error());
  return {};
}

}  // namespace ckpt::restore
