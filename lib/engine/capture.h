// The parts of one pre-dump or dump, in the order in which they come to be. Each undoes by itself what it has done;
// which steps are taken with them, in which order, is in dump.cpp.
#pragma once

#include <optional>
#include <string>

#include "lib/engine/capture_context.h"
#include "lib/engine/capture_devices.h"
#include "lib/engine/freeze_plan.h"
#include "lib/engine/new_image.h"
#include "lib/engine/precopy_loop.h"
#include "lib/engine/tracees.h"
#include "lib/memory/page_sample.h"
#include "lib/state/landlock/capture.h"
#include "lib/state/sockets/connections.h"

namespace ckpt::engine {

struct Capture {
  Capture(CaptureContext::Verb verb, const DumpOptions& options, ProgressSink& progress, const Cancel& cancel)
      : context(verb, options, progress, cancel) {
    if (options.validate_sample > 0) sample.emplace(options.validate_sample);
  }

  capture::OutsiderMaker outsiders;  ///< first: it is made before there is much memory
  CaptureContext context;
  CaptureDevices devices{context};
  Tracees tracees{context, devices.driver()};
  NewImage image{context};
  PrecopyLoop precopy{context, tracees, image};
  std::optional<FreezePlan> plan;
  capture::HeldConnections connections;
  std::optional<capture::PageSample> sample;  ///< of the pages that are called unchanged; nothing: none is wanted
  capture::PageSample::Compared validated;
  std::string differs;  ///< what validation has found, in words; empty: nothing
};

}  // namespace ckpt::engine
