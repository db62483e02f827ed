"""Shares of queues: deserved shares, guarantees, capabilities, queue trees and past usage."""
