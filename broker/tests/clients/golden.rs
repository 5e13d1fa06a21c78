//! What recorded clients asked, and how alike the answers are.
