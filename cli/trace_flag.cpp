#include "cli/trace_flag.h"

namespace ckpt::cli {

void add_trace_flag(VerbOptions& app, std::string& file) {
  app.add_option("--trace", file, "Write a timeline of this run (Chrome trace JSON; opens in Perfetto)")
      .type_name("FILE");
}

}  // namespace ckpt::cli
