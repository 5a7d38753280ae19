#include "cli/store_flags.h"

namespace ckpt::cli {

void add_store_flags(VerbOptions& app, StoreFlags& flags, bool required) {
  VerbOption store = app.add_option("--store", flags.place,
                                    required ? "The store: a folder, or a URL" : "In this store: a folder, or a URL");
  store.type_name("DIR|URL");
  if (required) store.required();
  app.add_option("--store-key", flags.key_file,
                 "A file with the store's key: who has it not can neither probe nor forge")
      .type_name("FILE");
}

Result<std::unique_ptr<repository::Repository>> open_store(Context& context, const StoreFlags& flags, bool create) {
  return repository::Repository::open({flags.place, flags.key_file, create}, context.cancel);
}

Error argument_required(const std::string& verb, const std::string& argument) {
  return Error(Code::kUsage, verb, argument + " is required").with_hint("ckpt " + verb + " --help lists what it takes");
}

}  // namespace ckpt::cli
