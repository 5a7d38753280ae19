// --trace FILE: a timeline of one run of a verb.
#pragma once

#include <new>
#include <string>

#include "cli/command.h"
#include "lib/base/trace.h"

namespace ckpt::cli {

void add_trace_flag(VerbOptions& app, std::string& file);

/// Runs `work`, which returns a Result, and leaves its timeline in `file`, also when it fails; without a file it only
/// runs it. A file that cannot be made is refused before `work` begins. One that cannot be written in the end is told
/// and changes nothing: what `work` did is done.
template <class Work>
auto traced(const std::string& file, const char* verb, Context& context, Work work) -> decltype(work()) {
  if (file.empty()) return work();
  auto recording = trace::Recording::start(file, std::string("ckpt ") + verb);
  if (!recording) return std::move(recording).error();
  trace::name_thread("main");
  auto result = work();
  try {
    if (auto written = recording->write(); !written) context.progress.note("no timeline: " + written.error().text());
  } catch (const std::bad_alloc&) {
    // no timeline
  }
  return result;
}

}  // namespace ckpt::cli
