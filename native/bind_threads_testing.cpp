// headrace._native.testing: pool, machine limits, checksums, requantizing and the shapes of chunks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "common/table.h"
#include "tape/checksum.h"
#include "tape/requantize.h"
#include "tape/shape.h"
#include "threads/machine.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// Runs phases of the given numbers of chunks in turn; returns how often each chunk of each phase
// ran. Every chunk also checks that it sees what the phase before left behind.
std::vector<std::vector<uint32_t>> run_phases(Pool& pool, const std::vector<uint32_t>& phases) {
  const nb::gil_scoped_release unlocked;
  std::vector<std::vector<uint32_t>> runs;
  for (const uint32_t num_chunks : phases) runs.emplace_back(num_chunks, 0);
  Pool::Lease lease(pool);
  for (size_t phase = 0; phase < phases.size(); ++phase) {
    lease.parallel_for(phases[phase], [&](int thread, uint32_t chunk) {
      if (thread < 0 || thread >= pool.num_threads()) throw std::logic_error("thread");
      if (phase > 0) {
        for (const uint32_t count : runs[phase - 1]) {
          if (count != 1) throw std::logic_error("a chunk of the phase before is not done");
        }
      }
      ++runs[phase][chunk];
    });
  }
  return runs;
}

// Chunk `bad` raises; returns how many chunks ran all the same.
uint32_t run_with_error(Pool& pool, uint32_t num_chunks, uint32_t bad) {
  std::atomic<uint32_t> count{0};
  Pool::Lease lease(pool);
  try {
    lease.parallel_for(num_chunks, [&](int, uint32_t chunk) {
      count.fetch_add(1);
      if (chunk == bad) throw std::runtime_error("chunk " + std::to_string(chunk));
    });
  } catch (const std::runtime_error& error) {
    if (error.what() != "chunk " + std::to_string(bad)) throw;
    return count.load();
  }
  throw std::logic_error("the error was lost");
}

// (floating point environments seen, threads seen, signals that a worker does not block).
std::tuple<std::vector<uint32_t>, int, int> thread_states(Pool& pool) {
  std::mutex mutex;
  std::set<uint32_t> envs;
  std::set<int> threads;
  int open_signals = 0;
  const nb::gil_scoped_release unlocked;
  // In a phase chunks wait for each other (for a while), so that as many threads as can run take
  // one; between phases the threads fall asleep, so that those of a crowded pool take turns.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto is_late = [&] { return std::chrono::steady_clock::now() >= deadline; };
  const auto num_threads = static_cast<size_t>(pool.num_threads());
  while (threads.size() < num_threads && !is_late()) {
    std::set<int> here;
    Pool::Lease lease(pool);
    lease.parallel_for(static_cast<uint32_t>(lease.num_threads()), [&](int thread, uint32_t) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        envs.insert(read_fp_env() & ~0x3fu);  // without the sticky exception flags
        here.insert(thread);
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        if (thread > 0 && sigismember(&mask, SIGINT) == 0) ++open_signals;
      }
      for (bool all = false; !all && !is_late();) {
        std::this_thread::yield();
        const std::lock_guard<std::mutex> lock(mutex);
        all = here.size() == static_cast<size_t>(lease.num_threads());
      }
    });
    threads.insert(here.begin(), here.end());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {std::vector<uint32_t>(envs.begin(), envs.end()), static_cast<int>(threads.size()),
          open_signals};
}

// (what `function` returns, the environment afterwards without its flags): called in `env`, which
// native entries must neither compute in nor lose.
nb::object call_in_env(uint32_t env, const nb::callable& function) {
  constexpr uint32_t kFlags = 0x3f;
  const FpEnv restore;
  write_fp_env(env);
  const nb::object result = function();
  return nb::make_tuple(result, read_fp_env() & ~kFlags);
}

uint64_t pieces_checksum(const nb::bytes& data) {
  const auto* bytes = static_cast<const uint8_t*>(data.data());
  std::vector<uint64_t> pieces;
  for (size_t begin = 0; begin < data.size(); begin += kChecksumPiece) {
    pieces.push_back(xxh64(bytes + begin, std::min(kChecksumPiece, data.size() - begin), 0));
  }
  return combine_checksums(pieces, data.size());
}

nb::bytes requantize(int32_t from, int32_t to, const nb::bytes& src, int32_t rows, int32_t k) {
  const auto stored = static_cast<DType>(from);
  const auto packed = static_cast<DType>(to);
  if (!can_requantize(stored, packed) || k % block_weights(packed) != 0 ||
      src.size() != static_cast<size_t>(rows) * k * block_bytes(stored)) {
    throw std::invalid_argument("these rows cannot be requantized");
  }
  std::vector<float> floats(k);
  std::vector<uint8_t> out(static_cast<size_t>(rows) * (k / block_weights(packed)) *
                           block_bytes(packed));
  requantize_rows(stored, packed, static_cast<const uint8_t*>(src.data()), rows, k, floats.data(),
                  out.data());
  return nb::bytes(out.data(), out.size());
}

// (first row, most rows, first tile, end of tiles) of every chunk.
std::vector<std::tuple<int, int, int, int>> product_chunks(int32_t rows, int32_t tiles, int32_t k,
                                                           size_t tile_bytes, size_t act_bytes,
                                                           int threads, int32_t step) {
  const auto shape = ProductShape::make(rows, tiles, k, tile_bytes, act_bytes, threads, step);
  std::vector<std::tuple<int, int, int, int>> chunks;
  for (uint32_t c = 0; c < shape.num_chunks(); ++c) {
    chunks.emplace_back(shape.first_row(c), shape.block_rows, shape.begin(c), shape.end(c));
  }
  return chunks;
}

}  // namespace

void bind_threads_testing(nb::module_& testing) {
  testing.def("run_phases", &run_phases, nb::arg("pool"), nb::arg("phases"));
  testing.def("run_with_error", &run_with_error, nb::arg("pool"), nb::arg("num_chunks"),
              nb::arg("bad"));
  testing.def("thread_states", &thread_states, nb::arg("pool"));
  testing.def("call_in_env", &call_in_env, nb::arg("env"), nb::arg("function"));
  testing.def("cgroup_cpu_limit", &cgroup_cpu_limit, nb::arg("root"));
  testing.def(
      "memory_info",
      [](const std::string& root) {
        const MemoryInfo info = memory_info(root);
        return std::tuple<int64_t, int64_t>(info.total_bytes, info.available_bytes);
      },
      nb::arg("root"));
  testing.def(
      "xxh64",
      [](const nb::bytes& data, uint64_t seed) {
        return xxh64(static_cast<const uint8_t*>(data.data()), data.size(), seed);
      },
      nb::arg("data"), nb::arg("seed"));
  testing.def("checksum", &pieces_checksum, nb::arg("data"));
  testing.def("requantize", &requantize, nb::arg("stored"), nb::arg("packed"), nb::arg("src"),
              nb::arg("rows"), nb::arg("k"));
  testing.def("product_chunks", &product_chunks, nb::arg("rows"), nb::arg("tiles"), nb::arg("k"),
              nb::arg("tile_bytes"), nb::arg("act_bytes"), nb::arg("threads"), nb::arg("step"));
  testing.def("rows_per_chunk", &rows_per_chunk, nb::arg("rows"), nb::arg("row_floats"),
              nb::arg("num_threads"));
}

}  // namespace headrace
