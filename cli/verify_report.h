// What `verify` found in a model checkpoint, for people and for programs.
#pragma once

#include "cli/console.h"
#include "lib/model/verify/verify.h"

namespace ckpt::cli {

struct VerifyOutcome {
  std::string path, format;
  size_t tensors = 0, objects = 0;
  model::VerifyReport report;
  uint64_t us = 0;
};

/// `globals`: also the table of names that the pickles import.
void print_verify_findings(Console& out, const VerifyOutcome& outcome, bool globals);
void print_verify_json(Console& out, const VerifyOutcome& outcome, bool ok);
/// Of a sound one, in a line.
std::string verify_summary(const VerifyOutcome& outcome);

}  // namespace ckpt::cli
