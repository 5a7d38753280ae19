// libckpt-flash: see ckpt_flash.h.
#include <algorithm>
#include <new>

#include "lib/flash/client/handle.h"

using namespace ckpt;
using namespace ckpt::flash;

extern "C" {

int ckpt_flash_open(const ckpt_flash_options* options, ckpt_flash** out) {
  *out = nullptr;
  // What came later is not in an older program's options.
  constexpr size_t kLeastSize = offsetof(ckpt_flash_options, partner_copy);
  if (options == nullptr || options->size < kLeastSize || options->directory == nullptr) return 2;
  auto* flash = new (std::nothrow)::ckpt_flash;
  if (flash == nullptr) return 9;
  *out = flash;
  return flash->run([&]() -> Result<void> {
    flash->directory = options->directory;
    flash->socket_path = options->socket != nullptr ? options->socket : "";
    flash->rank = options->rank;
    flash->world = options->world != 0 ? options->world : 1;
    flash->local_world = options->local_world != 0 ? options->local_world : flash->world;
    flash->partner_copy = options->size >= sizeof *options && options->partner_copy != 0;
    flash->threads =
        options->threads != 0 ? options->threads : std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
    return flash->connect();
  });
}

int ckpt_flash_reconnect(ckpt_flash* flash) {
  return flash->run([&] { return flash->reconnect(); });
}

const char* ckpt_flash_error(const ckpt_flash* flash) { return flash->error.c_str(); }

int ckpt_flash_declare(ckpt_flash* flash, const ckpt_flash_tensor* tensors, uint32_t count, uint64_t object_bytes) {
  return flash->run([&] { return flash->declare(tensors, count, object_bytes); });
}

int ckpt_flash_ready(ckpt_flash* flash) {
  if (flash->mapped && flash->mapped->readying.joinable()) flash->mapped->readying.join();
  return 0;
}

int ckpt_flash_begin(ckpt_flash* flash, uint64_t step, int if_busy, uint64_t timeout_ms, void** places) {
  int skipped = 0;
  const int failed = flash->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(skipped, flash->begin(step, if_busy, timeout_ms));
    if (skipped == 0 && places != nullptr) (void)ckpt_flash_places(flash, places);
    return {};
  });
  return failed != 0 ? failed : skipped;
}

int ckpt_flash_places(const ckpt_flash* flash, void** places) {
  if (!flash->mapped) return exit_code(Code::kUsage);
  const auto& tensors = flash->mapped->layout.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) places[i] = flash->mapped->buffer(flash->buffer) + tensors[i].offset;
  return 0;
}

int ckpt_flash_copy(ckpt_flash* flash, const void* const* data) {
  return flash->run([&] { return flash->copy(data); });
}

int ckpt_flash_commit(ckpt_flash* flash, const ckpt_flash_object* objects, uint32_t count, int persist,
                      ckpt_flash_saved* saved) {
  return flash->run([&] { return flash->commit(objects, count, persist, saved); });
}

int ckpt_flash_abort(ckpt_flash* flash) {
  return flash->run([&] { return flash->abort(); });
}

int ckpt_flash_keep(ckpt_flash* flash, uint64_t step) {
  return flash->run([&]() -> Result<void> {
    Request request;
    request.step = step;
    CKPT_TRY(ckpt::flash::checked(flash->call(Type::kKeep, request)));
    return {};
  });
}

int ckpt_flash_save(ckpt_flash* flash, uint64_t step, const void* const* data, const ckpt_flash_object* objects,
                    uint32_t count, int if_busy, uint64_t timeout_ms, int persist, ckpt_flash_saved* saved) {
  int done = ckpt_flash_begin(flash, step, if_busy, timeout_ms, nullptr);
  if (done != 0) return done;
  done = ckpt_flash_copy(flash, data);
  if (done == 0) done = ckpt_flash_commit(flash, objects, count, persist, saved);
  if (done != 0 && flash->writing) {
    const std::string why = flash->error;
    (void)ckpt_flash_abort(flash);
    flash->error = why;
  }
  return done;
}

int ckpt_flash_snapshot(ckpt_flash* flash, uint64_t step, const void* const* data, const ckpt_flash_object* objects,
                        uint32_t count, int if_busy, uint64_t timeout_ms, int persist, ckpt_flash_saved* saved) {
  int done = ckpt_flash_begin(flash, step, if_busy, timeout_ms, nullptr);
  if (done != 0) return done;
  done = flash->run([&] { return flash->take_snapshot(data, objects, count, persist, saved); });
  if (done != 0 && flash->writing) {
    const std::string why = flash->error;
    (void)ckpt_flash_abort(flash);
    flash->error = why;
  }
  return done;
}

int ckpt_flash_done(const ckpt_flash* flash) { return flash->under_way.load() ? 0 : 1; }

int ckpt_flash_wait(ckpt_flash* flash, ckpt_flash_saved* saved) {
  const int failed = flash->run([&]() -> Result<void> { return {}; });
  if (failed == 0 && saved != nullptr) *saved = flash->snapshot_saved;
  return failed;
}

int ckpt_flash_load(ckpt_flash* flash, uint64_t step, int from, const char* path, ckpt_flash_loaded** out) {
  *out = nullptr;
  return flash->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(*out, flash->load(flash->rank, step, from, path));
    return {};
  });
}

int ckpt_flash_look(ckpt_flash* flash, uint32_t rank, uint64_t step, ckpt_flash_loaded** out) {
  *out = nullptr;
  return flash->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(*out, flash->load(rank, step, CKPT_FLASH_FROM_MEMORY, nullptr));
    return {};
  });
}

void ckpt_flash_unload(ckpt_flash* flash, ckpt_flash_loaded* loaded) {
  flash->loaded.remove_if([&](Loaded& one) {
    if (&one.view != loaded) return false;
    if (one.pins && flash->socket) (void)flash->run([&] { return flash->unpin(one); });
    return true;
  });
  if (flash->closed && flash->loaded.empty()) delete flash;
}

int ckpt_flash_persist(ckpt_flash* flash, uint64_t step, const char* directory, int wait) {
  return flash->run([&]() -> Result<void> {
    Request request;
    request.step = step;
    request.flags = wait != 0 ? kWait : 0;
    CKPT_TRY(ckpt::flash::checked(
        flash->call(Type::kPersist, request, directory != nullptr ? directory : "", -1, wait != 0 ? -1 : kAnswerMs)));
    return {};
  });
}

int ckpt_flash_status(ckpt_flash* flash, const char** json) {
  return flash->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(Answer answer, ckpt::flash::checked(flash->call(Type::kStatus, {})));
    flash->text = std::move(answer.text);
    *json = flash->text.c_str();
    return {};
  });
}

void ckpt_flash_close(ckpt_flash* flash) {
  if (flash == nullptr) return;
  (void)flash->run([&]() -> Result<void> { return {}; });
  if (flash->socket) (void)flash->run([&] { return flash->abort(); });
  if (flash->end()) (void)flash->run([&] { return flash->call(Type::kBye, {}, {}, -1, 1000); });
  flash->socket.reset();
  if (flash->loaded.empty()) delete flash;
}

void ckpt_flash_leave(ckpt_flash* flash) {
  if (flash == nullptr) return;
  (void)flash->run([&]() -> Result<void> { return {}; });
  (void)flash->end();
  flash->socket.reset();
  if (flash->loaded.empty()) delete flash;
}

}  // extern "C"
