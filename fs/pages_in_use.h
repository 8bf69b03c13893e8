// PagesInUse keeps READs that are answered from a mapping of the entry apart from calls that cut or punch the
// file. A large READ is answered that way, so that its bytes are copied once. If a page went away meanwhile,
// the kernel would answer EIO to the reader, and for a page that is punched out meanwhile memory would be
// allocated. A reader that wants to map while a call cuts is refused, and copies instead. A call that cuts
// waits for the answers under way, each of which is a copy of 1 MiB at most in the kernel and waits for
// nothing itself. Any thread. Never fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace kvcachefs {

class PagesInUse {
  struct alignas(64) Stripe {
    std::atomic<uint32_t> readers{0};
    std::atomic<uint32_t> cutters{0};
  };

 public:
  class Reading {
   public:
    explicit Reading(Stripe& stripe) : stripe_(stripe), refused_((++stripe.readers, stripe.cutters != 0)) {}
    ~Reading() {
      if (--stripe_.readers == 0) stripe_.readers.notify_all();
    }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    bool refused() const { return refused_; }

   private:
    Stripe& stripe_;
    const bool refused_;
  };
  class Cutting {
   public:
    explicit Cutting(Stripe& stripe) : stripe_(stripe) {
      ++stripe_.cutters;
      for (uint32_t readers; (readers = stripe_.readers) != 0;) stripe_.readers.wait(readers);
    }
    ~Cutting() { --stripe_.cutters; }
    Cutting(const Cutting&) = delete;
    Cutting& operator=(const Cutting&) = delete;

   private:
    Stripe& stripe_;
  };

  Reading read(uint64_t nodeid) { return Reading(stripe_of(nodeid)); }
  Cutting cut(uint64_t nodeid) { return Cutting(stripe_of(nodeid)); }

 private:
  Stripe& stripe_of(uint64_t nodeid) { return stripes_[nodeid % stripes_.size()]; }
  std::array<Stripe, 64> stripes_;
};

}  // namespace kvcachefs
