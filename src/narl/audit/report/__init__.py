"""The page of an audit: one file that opens anywhere, also offline."""

from narl.audit.report.page import check_installed, write_report

__all__ = ["check_installed", "write_report"]
