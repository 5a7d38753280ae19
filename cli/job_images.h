// What watch and guard do alike: each image is made by a ckpt of its own, told as an event, and counted by retention.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "cli/job.h"
#include "lib/schedule/retention.h"

namespace ckpt::cli {

/// What one image has cost: of the document that its run has left; zeros where there is none.
struct ImageFigures {
  uint64_t frozen_us = 0, stall_us = 0, bytes = 0;  ///< stall: frozen and brief stops together
  uint64_t waited_us = 0;  ///< the threads of the processes waited for a processor meanwhile, in all
  std::string fell_back;   ///< why it is a full image, where validation has found something; else empty
};
ImageFigures figures_of(const std::string& document);

class JobImages {
 protected:
  struct Settings {
    const JobFlags& job;
    const schedule::RetentionRules& rules;
    const uint64_t& full_every;  ///< the most images that one may lean on, itself counted
  };
  JobImages(Context& context, const char* schema, const Settings& settings, ImageFolder folder, SignalQueue signals)
      : context_(context),
        folder_(std::move(folder)),
        signals_(std::move(signals)),
        events_(context.out, schema),
        settings_(settings) {}

  /// Until a signal, something on `fd` (-1: none), or so many microseconds.
  void wait(int fd, std::optional<uint64_t> us) const;
  /// Orphans of a restored job become children of this process. `ours` are left for those who wait for them.
  static void reap_strangers(std::initializer_list<pid_t> ours);

  /// A pre-dump or dump of the process to `next`.
  Result<CkptRun> start_run(const char* verb, int pid, const ImageFolder::Next& next) const;
  /// Where the next image of the process goes.
  Result<ImageFolder::Next> next_image(int pid) const { return folder_.next(pid, settings_.full_every); }
  /// "image DIR (needs PARENT): 3 MiB, stood still for 2 ms"
  static std::string text_of(const ImageFolder::Next& next, const ImageFigures& figures);
  void tell_failed(int pid, const Error& error);
  /// By the rules of retention; what could not be removed is noted.
  void remove_superfluous();

  Context& context_;
  ImageFolder folder_;
  SignalQueue signals_;
  Events events_;

 private:
  Settings settings_;
};

}  // namespace ckpt::cli
