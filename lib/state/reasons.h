// Everything that stands in the way of a restore, gathered before anything is created.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::restore {

class Reasons {
 public:
  void add(Code code, std::string text) { list_.emplace_back(code, std::move(text)); }
  void add(const Error& error) { add(error.code, error.text()); }
  void hint(std::string text) { hint_ = std::move(text); }
  size_t size() const { return list_.size(); }

  /// Nothing when all is well; else one Error with the code of the first reason, each reason a cause of its own.
  Result<void> verdict(const std::string& subject) const {
    if (list_.empty()) return {};
    if (list_.size() == 1) return Error(list_[0].first, "", list_[0].second).with_hint(hint_);
    Error error(list_[0].first, subject, "cannot be restored here, for " + std::to_string(list_.size()) + " reasons");
    for (const auto& reason : list_) error.causes.push_back(reason.second);
    return std::move(error).with_hint(hint_);
  }

 private:
  std::vector<std::pair<Code, std::string>> list_;
  std::string hint_;
};

}  // namespace ckpt::restore
