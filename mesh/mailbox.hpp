// SPDX-License-Identifier: MIT
// Short texts between the ranks of a mesh, beside its operations and not in its ledger: what ranks
// tell each other to find out what went wrong. For mesh/ only.
#pragma once

#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/communicator.hpp"

namespace tessera {

// Nothing is received before it has arrived, so a rank may stop listening at any time. Texts of
// one subject arrive in the order in which a peer sent them.
class Mailbox {
 public:
  enum class Subject : int { question, verdict, stall };
  struct Letter {
    int peer;
    std::string text;
  };

  // Mailboxes with different numbers (modulo some thousands) do not meet.
  Mailbox(Communicator communicator, int number);
  ~Mailbox();  // buffers of texts on their way outlive it
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void send(int peer, Subject subject, std::string text);
  // What has arrived, without waiting; from any peer if it is negative.
  std::optional<Letter> take(int peer, Subject subject);

 private:
  struct Parcel {
    int peer;
    Subject subject;
    std::string text;
    Communicator::Request request = {};
    bool done = false;
  };
  void collect();
  int tag(Subject subject) const;

  Communicator communicator_;
  int number_;
  std::list<Parcel> leaving_;
  std::list<Parcel> coming_;
};

// Several texts as one, and back.
std::string pack_fields(const std::vector<std::string>& fields);
std::vector<std::string> unpack_fields(std::string_view packed);

}  // namespace tessera
