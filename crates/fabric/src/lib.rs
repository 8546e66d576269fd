//! Endpoints, segments and doorbells: the remoting protocol and the attachment to the broker
