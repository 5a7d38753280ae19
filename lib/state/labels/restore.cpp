#include "lib/state/labels/restore.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>

#include "lib/state/labels/capture.h"

namespace ckpt::restore {

namespace {

std::string value_of(const std::vector<store::SecurityLabel>& labels, const std::string& name) {
  const auto found =
      std::find_if(labels.begin(), labels.end(), [&](const store::SecurityLabel& label) { return label.name == name; });
  return found == labels.end() ? "" : found->value;
}

std::string quoted(const std::string& label) { return label.empty() ? "none" : "\"" + label + "\""; }

/// The command that starts a program under a label: of AppArmor by the profile's name, which the mode follows.
std::string starter_of(const store::SecurityLabel& label) {
  const bool is_profile = label.value.ends_with(')');
  if (is_profile)
    return fmt::format("aa-exec -p '{}' -- ckpt restore ...", label.value.substr(0, label.value.rfind(" (")));
  if (std::count(label.value.begin(), label.value.end(), ':') >= 2)
    return fmt::format("runcon '{}' ckpt restore ...", label.value);
  return "";
}

}  // namespace

bool records_labels(const store::TreeImage& tree) {
  return tree.labels_recorded ||
         std::any_of(tree.processes.begin(), tree.processes.end(), [](const store::ProcessImage& process) {
           return std::any_of(process.threads.begin(), process.threads.end(),
                              [](const store::Thread& thread) { return !thread.labels.empty(); });
         });
}

void check_labels(const store::TreeImage& tree, const std::vector<store::SecurityLabel>& own, Reasons& reasons) {
  if (!records_labels(tree)) return;
  for (const store::ProcessImage& process : tree.processes) {
    if (process.zombie) continue;
    std::set<std::pair<std::string, std::string>> told;
    for (const store::Thread& thread : process.threads) {
      std::set<std::string> names;
      for (const auto* labels : {&thread.labels, &own}) {
        for (const store::SecurityLabel& label : *labels) names.insert(label.name);
      }
      for (const std::string& name : names) {
        const std::string was = value_of(thread.labels, name), is = value_of(own, name);
        if (was == is || !told.emplace(name, was).second) continue;
        reasons.add(Code::kPermission,
                    fmt::format("process {}: its security label (attr/{}) was {}, and would be ckpt's: {}", process.pid,
                                name, quoted(was), quoted(is)));
        const std::string starter = name == "current" ? starter_of({name, was}) : "";
        reasons.hint((starter.empty() ? "run ckpt restore under the label that it had"
                                      : fmt::format("run ckpt restore under the label that it had ({})", starter)) +
                     ", or give the label up: ckpt restore --drop-labels");
      }
    }
  }
}

void check_labels(const store::TreeImage& tree, Reasons& reasons, ProgressSink& progress) {
  if (!records_labels(tree) && capture::tells_labels())
    progress.note("the image is an older ckpt's, which did not record security labels: processes get ckpt's own");
  auto own = capture::read_labels(::getpid(), ::getpid());
  if (!own) return reasons.add(own.error());
  check_labels(tree, *own, reasons);
}

}  // namespace ckpt::restore
